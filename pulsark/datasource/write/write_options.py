"""The options of ``df.write.format("pulsark")`` and ``df.writeStream``: names, aliases, checks."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pulsark.datasource.options.errors import OptionError
from pulsark.datasource.options.option_docs import OPTIONS, OptionDoc
from pulsark.datasource.options.option_values import boolean, duration, one_of, positive, size
from pulsark.datasource.options.options import (
    BROKER,
    DEFAULT_POLL_TIMEOUT_MS,
    admin_url,
    credentials,
    service_url,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pulsark.admin_client.credentials import Credentials

EXACTLY_ONCE, AT_LEAST_ONCE = "exactly-once", "at-least-once"
AUTO_HASHING = "auto"
HASHING = {
    "javastringhash": "JavaStringHash",
    "murmur3_32hash": "Murmur3_32Hash",
    "boosthash": "BoostHash",
    AUTO_HASHING: AUTO_HASHING,
}
RAW = "raw"
VALUE_FORMATS = (RAW, "avro", "json")
COMPRESSIONS = ("none", "lz4", "zlib", "zstd", "snappy")

WRITE_OPTIONS: tuple[OptionDoc, ...] = (
    *(doc for doc in OPTIONS if doc.name in BROKER),
    OptionDoc(
        "topic", ("path",), "", "where all rows go; without it each row names its topic in a column"
    ),
    OptionDoc(
        "delivery",
        (),
        EXACTLY_ONCE,
        "exactly-once: rows appear all together, once; at-least-once: through the broker, as soon "
        "as they come, again after a failure",
    ),
    OptionDoc("view", (), "messages", "cursors instead: changes of subscriptions, see there"),
    OptionDoc(
        "valueFormat",
        (),
        RAW,
        "raw: value is bytes or text; avro or json: value is a struct, or all columns are its "
        "fields, and the topic gets their schema",
    ),
    OptionDoc("createTopic", (), "false", "whether a topic that does not exist is created"),
    OptionDoc("numPartitions", (), "none", "partitions of a topic that is created"),
    OptionDoc(
        "hashingScheme",
        ("pulsar.producer.hashingScheme",),
        "JavaStringHash",
        "which partition a key has: JavaStringHash (Java and Go clients), Murmur3_32Hash, "
        "BoostHash (C++ and Python clients), or auto: the one by which the topic's newest messages "
        "have their partitions",
    ),
    OptionDoc(
        "batchingMaxMessages",
        ("pulsar.producer.batchingMaxMessages",),
        "1000",
        "most messages of a batch",
    ),
    OptionDoc(
        "batchingMaxBytes",
        ("pulsar.producer.batchingMaxBytes",),
        "128k",
        "bytes of a batch that is not one large message; 64k, 1m or bytes",
    ),
    OptionDoc(
        "compression",
        ("compressionType", "pulsar.producer.compressionType"),
        "none",
        "with delivery=at-least-once: none, lz4, zlib, zstd, snappy. Files are always zstd",
    ),
    OptionDoc(
        "txnAppId",
        (),
        "none",
        "with txnVersion: a write with this id and version, or a later one, is done once",
    ),
    OptionDoc("txnVersion", (), "none", "a number that rises with each write of a txnAppId"),
    OptionDoc(
        "pollTimeoutMs",
        ("kafkaConsumer.pollTimeoutMs",),
        str(DEFAULT_POLL_TIMEOUT_MS),
        "how long a write waits for a broker that does not answer, before it fails; "
        "milliseconds, or 30s, 2m",
    ),
)

_NAMES = {key.lower(): doc.name for doc in WRITE_OPTIONS for key in (doc.name, *doc.aliases)}
_OF_SPARK = {"checkpointlocation", "queryname", "outputmode"}
"""Options that Spark hands to a sink and means for itself."""
_ELSEWHERE = {
    "kafka.bootstrap.servers": "serviceUrl",
    "topics": "topic",
    "partitions": "numPartitions",
    "idempotent": "delivery",
}
_OF_READS = {key.lower() for doc in OPTIONS for key in (doc.name, *doc.aliases)} - _NAMES.keys()
_IDENT = re.compile(r"[-.\w:]{1,100}", re.ASCII)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Checked options."""

    service_url: str
    admin_url: str
    credentials: Credentials
    topic: str | None
    value_format: str
    exactly_once: bool
    create_topic: bool
    num_partitions: int
    hashing_scheme: str
    batching_max_messages: int
    batching_max_bytes: int
    compression: str
    txn: tuple[str, int] | None
    poll_timeout_s: float

    @classmethod
    def parse(cls, raw: Mapping[str, str]) -> WriteOptions:
        """Check and complete what Spark hands over; ``OptionError`` names the option."""
        given = _canonical(raw)
        url = service_url(given)
        if given.get("view", "messages").strip().lower() != "messages":
            raise OptionError("option 'view': a stream writes messages only")
        topic = given.get("topic")
        if topic is not None and not topic.strip():
            raise OptionError("option 'topic' is empty")
        create = boolean("createTopic", given.get("createTopic", "false"))
        if "numPartitions" in given and not create:
            raise OptionError("option 'numPartitions' does nothing without createTopic=true")
        delivery = one_of(
            "delivery", given.get("delivery", EXACTLY_ONCE), (EXACTLY_ONCE, AT_LEAST_ONCE)
        )
        txn = _txn(given)
        if delivery == AT_LEAST_ONCE and txn is not None:
            raise OptionError("option 'txnAppId' is for delivery=exactly-once")
        if delivery == EXACTLY_ONCE and "compression" in given:
            raise OptionError("option 'compression' is for delivery=at-least-once")
        scheme = one_of("hashingScheme", given.get("hashingScheme", "javastringhash"), (*HASHING,))
        if scheme == AUTO_HASHING and topic is None:
            raise OptionError(
                "option 'hashingScheme': auto looks at the messages of one topic; set 'topic'"
            )
        wait = given.get("pollTimeoutMs", str(DEFAULT_POLL_TIMEOUT_MS))
        return cls(
            url,
            admin_url(given, url),
            credentials(given),
            topic,
            one_of("valueFormat", given.get("valueFormat", RAW), VALUE_FORMATS),
            delivery == EXACTLY_ONCE,
            create,
            positive("numPartitions", given["numPartitions"]) if "numPartitions" in given else 0,
            HASHING[scheme],
            positive("batchingMaxMessages", given.get("batchingMaxMessages", "1000")),
            size("batchingMaxBytes", given.get("batchingMaxBytes", "128k")),
            one_of("compression", given.get("compression", "none"), COMPRESSIONS),
            txn,
            int(wait) / 1000 if wait.isdigit() else duration("pollTimeoutMs", wait),
        )


def _txn(given: Mapping[str, str]) -> tuple[str, int] | None:
    if ("txnAppId" in given) != ("txnVersion" in given):
        raise OptionError("options 'txnAppId' and 'txnVersion' belong together; set both")
    if "txnAppId" not in given:
        return None
    ident, version = given["txnAppId"], given["txnVersion"].strip()
    if not _IDENT.fullmatch(ident):
        raise OptionError(
            "option 'txnAppId' has 1 to 100 letters, digits, '-', '.', ':' or '_', "
            f"not '{ident[:120]}'"
        )
    if not re.fullmatch(r"\d{1,18}", version):
        raise OptionError(f"option 'txnVersion': '{version}' is not a whole number from 0 up")
    return ident, int(version)


def _canonical(raw: Mapping[str, str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for key, value in raw.items():
        name = _NAMES.get(key.lower())
        if name is None:
            if key.lower() in _OF_SPARK:
                continue
            raise OptionError(_unknown(key))
        if given.setdefault(name, value) != value:
            raise OptionError(f"option '{name}' is given twice, under two names; set one of them")
    return given


def _unknown(key: str) -> str:
    if key.lower() in _OF_READS:
        return (
            f"option '{key}' is unknown for a write: it is for reading. A view over a topic "
            "that has it takes no INSERT; write with "
            'df.write.format("pulsark").option("topic", ...)'
        )
    near = difflib.get_close_matches(key.lower(), _NAMES, n=1, cutoff=0.6)
    meant = _ELSEWHERE.get(key.lower()) or (_NAMES[near[0]] if near else None)
    hint = f"did you mean '{meant}'? " if meant else ""
    valid = ", ".join(doc.name for doc in WRITE_OPTIONS)
    return f"option '{key}' is unknown for a write; {hint}Valid options: {valid}"
