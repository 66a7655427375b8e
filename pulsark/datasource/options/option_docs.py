"""The names of the options of ``format("pulsark")``, and what they mean."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_SERVICE_URL = "pulsar://localhost:6650"
SERVICE_URL_VARIABLE = "PULSARK_SERVICE_URL"
ADMIN_URL_VARIABLE = "PULSARK_ADMIN_URL"


@dataclass(frozen=True, slots=True)
class OptionDoc:
    """One option as the documentation and the error messages show it."""

    name: str
    aliases: tuple[str, ...]
    default: str
    meaning: str


OPTIONS: tuple[OptionDoc, ...] = (
    OptionDoc(
        "serviceUrl",
        ("service.url",),
        f"${SERVICE_URL_VARIABLE} or {DEFAULT_SERVICE_URL}",
        "URL of the broker, pulsar://host:port",
    ),
    OptionDoc(
        "adminUrl",
        ("admin.url",),
        f"${ADMIN_URL_VARIABLE} or port 8080 of serviceUrl's host",
        "URL of the admin API, http://host:port",
    ),
    OptionDoc(
        "authPluginClassName",
        ("pulsar.client.authPluginClassName",),
        "$PULSARK_AUTH_PLUGIN",
        "how to log in: Pulsar's name of AuthenticationToken, AuthenticationBasic or "
        "AuthenticationTls, or token, basic, tls",
    ),
    OptionDoc(
        "authParams",
        ("pulsar.client.authParams",),
        "$PULSARK_AUTH_PARAMS or $PULSARK_TOKEN_FILE",
        "token:TOKEN or file:///PATH for a token, as in Pulsar's clients for others",
    ),
    OptionDoc(
        "tlsTrustCertsFilePath",
        ("pulsar.client.tlsTrustCertsFilePath",),
        "$PULSARK_TLS_TRUST_CERTS or this machine's CAs",
        "PEM file of the CAs that a broker's certificate may be from, on each machine",
    ),
    OptionDoc("topic", ("path",), "", "one topic; load(path) sets it too"),
    OptionDoc("topics", ("paths",), "", "several topics, separated by commas"),
    OptionDoc(
        "topicsPattern",
        (),
        "",
        "regular expression for the topic's name, in the namespace that stands in front of it",
    ),
    OptionDoc(
        "view",
        (),
        "messages",
        "what to read: messages, topics, cursors, cursor_history, backlog, schemas, producers, "
        "consumers, ledgers",
    ),
    OptionDoc(
        "namespace",
        (),
        "public/default",
        "for views: all topics of this namespace, if no topic is named",
    ),
    OptionDoc(
        "versionAsOf",
        (),
        "",
        "messages as they were in this version of the topic's table; batch only",
    ),
    OptionDoc(
        "timestampAsOf",
        (),
        "",
        "messages, or the view cursors, as they were at this time: ISO 8601 (UTC) or milliseconds; "
        "batch only",
    ),
    OptionDoc(
        "readCompacted",
        (),
        "false",
        "whether only the latest message of each key is read, where the topic was compacted; "
        "batch only",
    ),
    OptionDoc(
        "startingOffsets",
        (),
        "earliest (batch), latest (stream)",
        'earliest, latest (stream only) or JSON: {"topic": {"0": "ledger:entry[:batch]"}}, '
        "the first message to read; -2 and -1 in JSON are earliest and latest",
    ),
    OptionDoc(
        "endingOffsets",
        (),
        "latest",
        "latest or JSON as above, the last message to read; batch only",
    ),
    OptionDoc(
        "startingTimestamp",
        ("startingTime",),
        "",
        "the first message published at this time or later: ISO 8601 (UTC) or milliseconds; "
        "counts more than startingOffsets",
    ),
    OptionDoc(
        "endingTimestamp",
        ("endingTime",),
        "",
        "the last message before the first one published at this time or later; batch only",
    ),
    OptionDoc(
        "startingOffsetsByTimestamp",
        (),
        "",
        'startingTimestamp for each partition: {"topic": {"0": milliseconds}}',
    ),
    OptionDoc(
        "endingOffsetsByTimestamp",
        (),
        "",
        "endingTimestamp for each partition; batch only",
    ),
    OptionDoc(
        "startingOffsetsByTimestampStrategy",
        (),
        "error",
        "error or latest: what to do with a partition that has no message so new",
    ),
    OptionDoc(
        "subscription",
        ("predefinedSubscription",),
        "",
        "durable subscription that follows a stream, so that backlog and retention see it",
    ),
    OptionDoc(
        "subscriptionPrefix",
        (),
        "",
        "the same, under a name made of this and of the topics",
    ),
    OptionDoc("columns", (), "all", "columns to read, separated by commas"),
    OptionDoc(
        "includeProperties",
        ("includeHeaders",),
        "true",
        "whether properties are a column; the costliest one",
    ),
    OptionDoc(
        "valueFormat",
        (),
        "raw",
        "raw (value is binary), string (value is text), auto (the fields of the topic's schema are "
        "columns) or json (the fields of valueSchema are)",
    ),
    OptionDoc(
        "schemaEvolutionMode",
        (),
        "fail",
        "for valueFormat auto, when a newer schema version adds or widens columns after load(): "
        "fail (load again to read them) or ignore (the payload is kept in __valueRaw)",
    ),
    OptionDoc("valueSchema", (), "", "for valueFormat json: the payload's fields, as DDL"),
    OptionDoc(
        "readTableFiles",
        (),
        "true",
        "whether tasks that can reach the files of a topic's table read sealed messages from them",
    ),
    OptionDoc(
        "pushdown",
        (),
        "false",
        "whether a batch read applies filters itself; for one query of a DataFrame only",
    ),
    OptionDoc(
        "minPartitions", (), "2 x cores of the driver", "least number of splits, if possible"
    ),
    OptionDoc(
        "maxRecordsPerPartition", (), "none", "most messages of a split, about; it may be more"
    ),
    OptionDoc(
        "maxRowsPerTrigger",
        ("maxOffsetsPerTrigger",),
        "none",
        "how many messages a micro-batch reads at most; at least one of each partition",
    ),
    OptionDoc(
        "maxBytesPerTrigger", (), "none", "how much a micro-batch reads, about; 64m, 1g or bytes"
    ),
    OptionDoc(
        "minRowsPerTrigger",
        ("minOffsetsPerTrigger",),
        "none",
        "how many messages a micro-batch waits for, but no longer than maxTriggerDelay",
    ),
    OptionDoc(
        "maxTriggerDelay",
        (),
        "15m",
        "how long after a batch the next one may wait for minRowsPerTrigger; 500ms, 30s, 15m, 1h",
    ),
    OptionDoc(
        "failOnDataLoss", (), "true", "whether messages that are gone before they were read fail"
    ),
    OptionDoc(
        "waitForTopic",
        ("waitingForNonExistedTopic",),
        "false",
        "whether a stream may start before its topic exists, and reads it from its start then",
    ),
    OptionDoc(
        "fetchOffset.numRetries",
        (),
        "0",
        "how many times more a stream asks for the end of its topics, each for pollTimeoutMs",
    ),
    OptionDoc(
        "fetchOffset.retryIntervalMs", (), "10", "how long it waits in between, in milliseconds"
    ),
    OptionDoc(
        "pollTimeoutMs",
        ("kafkaConsumer.pollTimeoutMs",),
        "120000",
        "how long a read waits for a broker that does not answer, before it fails",
    ),
)

ELSEWHERE = {
    "subscribe": "topics",
    "assign": "topics",
    "subscribepattern": "topicsPattern",
    "kafka.bootstrap.servers": "serviceUrl",
    "kafka.group.id": "subscription",
    "maxfilespertrigger": "maxRowsPerTrigger",
}
"""Names of other sources that mean something like it, but not the same: named in the error."""
