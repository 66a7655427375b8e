"""The settings of storage: bookies, ledgers, their journal, and the tables they are sealed into."""

from __future__ import annotations

from dataclasses import dataclass

from pulsark.config.quotas import QuotaSettings
from pulsark.config.spec import setting


@dataclass(frozen=True, slots=True, kw_only=True, init=False, repr=False, eq=False)
class StorageSettings(QuotaSettings):
    """That part of ``Settings``, and what it needs."""

    managedLedgerDefaultEnsembleSize: int = setting(
        2, "count", "Bookies a ledger is spread over", ge=1, le=64
    )
    managedLedgerDefaultWriteQuorum: int = setting(
        2, "count", "Copies written of each entry", ge=1, le=64
    )
    managedLedgerDefaultAckQuorum: int = setting(
        2, "count", "Copies that must be on disk before a publish is confirmed", ge=1, le=64
    )
    managedLedgerMaxEntriesPerLedger: int = setting(
        50_000, "count", "A ledger with this many entries is closed, and a new one begins", ge=1
    )
    managedLedgerMinLedgerRolloverTimeMinutes: int = setting(
        10, "min", "A ledger younger than this is not closed because of its number of entries", ge=0
    )
    managedLedgerMaxLedgerRolloverTimeMinutes: int = setting(
        240, "min", "A ledger is closed at this age", ge=1
    )
    managedLedgerMaxSizePerLedgerMbytes: int = setting(
        2048, "MB", "A ledger of this size is closed, and a new one begins", ge=1
    )
    managedLedgerCacheSizeMB: int = setting(
        256, "MB", "Memory for the newest entries of all topics", ge=1, le=1_048_576
    )
    metadataStoreUrl: str = setting(
        "",
        "URL",
        "Where metadata are: zk:HOST:PORT,HOST:PORT/PATH is ZooKeeper, "
        "etcd:http://HOST:PORT,http://HOST:PORT/PATH is etcd; empty, or rocksdb:...: a file in "
        "dataDir",
    )
    configurationMetadataStoreUrl: str = setting(
        "",
        "URL",
        "ZooKeeper or etcd with clusters, tenants, namespaces, numbers of partitions and resource "
        "groups, if they are not in metadataStoreUrl",
    )
    metadataStoreConfigPath: str = setting(
        "",
        "path",
        "File with settings of ZooKeeper's client, for TLS and login; for etcd, YAML with useTls "
        "and others",
    )
    metadataStoreSessionTimeoutMillis: int = setting(
        30_000,
        "ms",
        "ZooKeeper or etcd ends the session of a broker that is silent for so long",
        ge=1000,
        le=3_600_000,
    )
    bookkeeperMetadataServiceUri: str = setting(
        "",
        "URL",
        "Where bookies of Apache BookKeeper register, zk://HOST:PORT/ledgers; empty: /ledgers "
        "below metadataStoreUrl",
    )
    bookkeeperClientTimeoutInSeconds: int = setting(
        5,
        "s",
        "A bookie of Apache BookKeeper that does not answer for so long is replaced in ledgers",
        ge=1,
        le=600,
    )
    bookkeeperClientSpeculativeReadTimeoutInMillis: int = setting(
        1000,
        "ms",
        "A bookie that has not answered a read for so long is asked last for a while, and another "
        "one beside it; 0: only bookies that fail are",
        ge=0,
        le=600_000,
    )
    metadataStoreOperationTimeoutSeconds: int = setting(
        30, "s", "A write of the metadata store that takes longer fails", ge=1, le=3600
    )
    journalMaxSizeMB: int = setting(
        2048, "MB", "A journal file ends at this size, or at a tenth of its disk", ge=1
    )
    journalDirectories: tuple[str, ...] = setting(
        (), "paths", "Journal directory of each embedded bookie; empty: below dataDir"
    )
    ledgerDirectories: tuple[str, ...] = setting(
        (), "paths", "Index directory of each embedded bookie; empty: below dataDir"
    )
    tableRoots: tuple[str, ...] = setting(
        (),
        "paths",
        "Storage roots of topics' tables: directories, as of a file system that all brokers have, "
        "or s3://BUCKET/PREFIX; empty: one beside the index of each embedded bookie",
        own=True,
    )
    objectStoreEndpoint: str = setting(
        "",
        "URL",
        "Where the object store of tableRoots is, https://HOST:PORT; empty: AWS_ENDPOINT_URL, "
        "or AWS in the region",
        own=True,
    )
    objectStoreRegion: str = setting(
        "", "", "Region of the object store; empty: AWS_REGION, or us-east-1", own=True
    )
    objectStoreCredentialsFile: str = setting(
        "",
        "path",
        "File with the keys for the object store, as ~/.aws/credentials, read every 5 minutes; "
        "empty: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the role of the machine",
        own=True,
    )
    objectStoreTimeoutSeconds: int = setting(
        30, "s", "A request to the object store that takes longer fails", ge=1, le=600, own=True
    )
    objectStoreRetrySeconds: int = setting(
        10,
        "s",
        "Failed requests to the object store are repeated for this time; 0: never",
        ge=0,
        le=600,
        own=True,
    )
    diskUsageWarnThreshold: float = setting(
        0.85, "", "The log, health and metrics warn of a disk that is fuller", ge=0.01, le=1
    )
    diskUsageThreshold: float = setting(
        0.95,
        "",
        "They report a disk that is fuller as critical. Publishes are refused at the reserve: 5 % "
        "of the disk, and at most 64 MiB",
        ge=0.01,
        le=1,
    )
    diskCheckIntervalMillis: int = setting(
        5000,
        "ms",
        "Time between two looks at the free space of disks",
        ge=100,
        le=600_000,
        own=True,
    )
    sealEnabled: bool = setting(
        True, "", "Messages move from the journal into the table of their topic", own=True
    )
    tableProcessMemoryMB: int = setting(
        2048,
        "MB",
        "Memory that a process that reads or writes tables may take; a message that needs more is "
        "kept as it was sent",
        ge=256,
        own=True,
    )
    sealByJobs: bool = setting(
        False,
        "",
        "Spark jobs (jobs/seal_ledgers.py) seal, instead of the broker",
        own=True,
    )
    sealTargetFileSizeMB: int = setting(
        128, "MB", "Target size of the files of a topic's table", ge=1, own=True
    )
    sealFreshnessSeconds: int = setting(
        20,
        "s",
        "Messages are in the table after this time; 0: when their ledger is closed or large",
        ge=0,
        own=True,
    )
    sealFreshnessWhenReadSeconds: int = setting(
        5,
        "s",
        "The same for an hour after a reader asked for the table's path, if shorter; 0: never",
        ge=0,
        own=True,
    )
    tableVacuumRetentionHours: int = setting(
        24,
        "h",
        "Files that were removed from a topic's table are kept for this time, for running queries",
        ge=0,
        own=True,
    )
    tableLogRetentionDays: int = setting(
        7,
        "d",
        "Commits of a topic's table are kept for this time; older versions cannot be read",
        ge=0,
        own=True,
    )
    cursorFlushIntervalMillis: int = setting(
        1000,
        "ms",
        "Acknowledgements that no client waits for are written after this time",
        ge=1,
        le=60_000,
        own=True,
    )
    cursorHistoryMinutes: int = setting(
        7 * 24 * 60,
        "min",
        "How far back subscriptions can be restored to what they had acknowledged",
        ge=0,
        own=True,
    )
    cursorHistoryMaxMB: int = setting(
        64, "MB", "Size of that history that is kept for each bundle; 0: none", ge=0, own=True
    )
    defaultRetentionTimeInMinutes: int = setting(
        0, "min", "Acknowledged messages are kept for this time; -1: for ever", ge=-1
    )
    defaultRetentionSizeInMB: int = setting(
        0, "MB", "Acknowledged messages are kept up to this size; -1: all", ge=-1
    )
