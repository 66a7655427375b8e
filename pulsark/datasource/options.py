"""The options of ``format("pulsark")``: names, aliases, checks.

Spark hands every option over as text under a lower-cased key and checks none of them, so an
unknown key is an error here: a silently ignored ``startingOfsets`` reads the wrong messages.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from pulsark.datasource.errors import OptionError
from pulsark.datasource.offsets import Edge, StartingPoint, parse_point

DEFAULT_SERVICE_URL = "pulsar://localhost:6650"
DEFAULT_NAMESPACE = "public/default"
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
        "what to read: messages, topics, cursors, backlog, schemas, producers, consumers, ledgers",
    ),
    OptionDoc(
        "namespace",
        (),
        "public/default",
        "for views: all topics of this namespace, if no topic is named",
    ),
    OptionDoc(
        "startingOffsets",
        (),
        "earliest (batch), latest (stream)",
        'earliest, latest (stream only) or JSON: {"topic": {"0": "ledger:entry[:batch]"}}, '
        "the first message to read",
    ),
    OptionDoc(
        "endingOffsets",
        (),
        "latest",
        "latest or JSON as above, the last message to read; batch only",
    ),
    OptionDoc(
        "subscription",
        ("predefinedSubscription",),
        "",
        "durable subscription that follows a stream, so that backlog and retention see it",
    ),
    OptionDoc("columns", (), "all", "columns to read, separated by commas"),
    OptionDoc(
        "minPartitions", (), "2 x cores of the driver", "least number of splits, if possible"
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
        "pollTimeoutMs",
        ("kafkaConsumer.pollTimeoutMs",),
        "120000",
        "how long a read waits for a broker that does not answer, before it fails",
    ),
)

DEFAULT_POLL_TIMEOUT_MS = 120_000

_NAMES = {key.lower(): doc.name for doc in OPTIONS for key in (doc.name, *doc.aliases)}
_SIZE = re.compile(r"(\d+)\s*([kmgt]?)i?b?", re.IGNORECASE)
_DURATION = re.compile(r"(\d{1,9})\s*(ms|s|m|h|d)", re.IGNORECASE)
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
MESSAGES = "messages"
VIEWS = ("topics", "cursors", "backlog", "schemas", "producers", "consumers", "ledgers")
_OF_VIEWS = (
    "serviceUrl",
    "adminUrl",
    "topic",
    "topics",
    "topicsPattern",
    "view",
    "namespace",
    "columns",
    "minPartitions",
    "pollTimeoutMs",
)
_NAMESPACE = re.compile(r"[^/\s]+/[^/\s]+")
_BATCH_ONLY = ("endingOffsets",)
_STREAM_ONLY = (
    "maxRowsPerTrigger",
    "maxBytesPerTrigger",
    "minRowsPerTrigger",
    "maxTriggerDelay",
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


@dataclass(frozen=True, slots=True)
class Options:
    """Checked options. ``topics`` are as the user wrote them; exactly one of the two is set."""

    service_url: str
    admin_url: str
    topics: tuple[str, ...]
    topics_pattern: str | None
    view: str
    namespace: str
    starting: StartingPoint | None
    ending: StartingPoint | None
    subscription: str | None
    columns: tuple[str, ...] | None
    min_partitions: int | None
    max_rows_per_trigger: int | None
    max_bytes_per_trigger: int | None
    min_rows_per_trigger: int | None
    max_trigger_delay_s: float
    fail_on_data_loss: bool
    poll_timeout_s: float

    @classmethod
    def parse(cls, raw: Mapping[str, str], *, streaming: bool | None = None) -> Options:
        """Check everything; ``OptionError``. ``streaming`` None leaves the mode open."""
        given = _canonical(raw)
        _check_mode(given, streaming)
        _check_rows(given)
        view = _view(given, streaming)
        topics, pattern = _topics(given) if view == MESSAGES else _view_topics(given)
        service_url = _service_url(given)
        return cls(
            service_url=service_url,
            admin_url=_admin_url(given, service_url),
            topics=topics,
            topics_pattern=pattern,
            view=view,
            namespace=_namespace(given),
            starting=_point(given, "startingOffsets", streaming),
            ending=_point(given, "endingOffsets", streaming),
            subscription=_subscription(given),
            columns=_optional(given, "columns", _names),
            min_partitions=_optional(given, "minPartitions", _positive),
            max_rows_per_trigger=_optional(given, "maxRowsPerTrigger", _positive),
            max_bytes_per_trigger=_optional(given, "maxBytesPerTrigger", _size),
            min_rows_per_trigger=_optional(given, "minRowsPerTrigger", _positive),
            max_trigger_delay_s=_duration("maxTriggerDelay", given.get("maxTriggerDelay", "15m")),
            fail_on_data_loss=_boolean("failOnDataLoss", given.get("failOnDataLoss", "true")),
            poll_timeout_s=(_optional(given, "pollTimeoutMs", _positive) or DEFAULT_POLL_TIMEOUT_MS)
            / 1000,
        )


def describe_options() -> str:
    """The names of all options, for messages."""
    return ", ".join(doc.name for doc in OPTIONS)


def _canonical(raw: Mapping[str, str]) -> dict[str, str]:
    given: dict[str, str] = {}
    spelled: dict[str, str] = {}
    for key, value in raw.items():
        name = _NAMES.get(key.lower())
        if name is None:
            raise OptionError(_unknown(key))
        if name in given and given[name] != value:
            raise OptionError(
                f"options '{spelled[name]}' and '{key}' mean the same and differ; set one of them"
            )
        given[name] = value
        spelled[name] = key
    return given


def _unknown(key: str) -> str:
    near = difflib.get_close_matches(key.lower(), _NAMES, n=1, cutoff=0.6)
    meant = ELSEWHERE.get(key.lower()) or (_NAMES[near[0]] if near else None)
    hint = f"did you mean '{meant}'? " if meant else ""
    return f"option '{key}' is unknown; {hint}Valid options: {describe_options()}"


def _check_mode(given: Mapping[str, str], streaming: bool | None) -> None:
    if streaming is None:
        return
    for name in _BATCH_ONLY if streaming else _STREAM_ONLY:
        if name in given:
            mode, other = ("readStream", "read") if streaming else ("read", "readStream")
            raise OptionError(f"option '{name}' is for spark.{other}, not for spark.{mode}")


def _check_rows(given: Mapping[str, str]) -> None:
    if "maxTriggerDelay" in given and "minRowsPerTrigger" not in given:
        raise OptionError("option 'maxTriggerDelay' does nothing without 'minRowsPerTrigger'")
    least, most = (
        _optional(given, name, _positive) for name in ("minRowsPerTrigger", "maxRowsPerTrigger")
    )
    if least is not None and most is not None and least > most:
        raise OptionError(
            f"option 'minRowsPerTrigger': {least} is more than 'maxRowsPerTrigger', which is {most}"
        )


def _view(given: Mapping[str, str], streaming: bool | None) -> str:
    view = given.get("view", MESSAGES).strip().lower()
    if view == MESSAGES:
        if "namespace" in given:
            raise OptionError(
                "option 'namespace' is for views; for messages set 'topicsPattern' to "
                "tenant/namespace/.*"
            )
        return view
    if view not in VIEWS:
        near = difflib.get_close_matches(view, VIEWS, n=1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        raise OptionError(
            f"option 'view': '{given['view']}' is unknown; {hint}Valid views: "
            f"{', '.join((MESSAGES, *VIEWS))}"
        )
    if streaming:
        raise OptionError(f"option 'view' is for spark.read, not for spark.readStream: {view}")
    for name in given:
        if name not in _OF_VIEWS:
            raise OptionError(f"option '{name}' is for messages, not for the view {view}")
    return view


def _view_topics(given: Mapping[str, str]) -> tuple[tuple[str, ...], str | None]:
    if any(name in given for name in ("topic", "topics", "topicsPattern")):
        if "namespace" in given:
            raise OptionError("option 'namespace' is for all its topics; leave it or the topic out")
        return _topics(given)
    return (), None


def _namespace(given: Mapping[str, str]) -> str:
    value = given.get("namespace", DEFAULT_NAMESPACE).strip()
    if _NAMESPACE.fullmatch(value) is None:
        raise OptionError(f"option 'namespace': '{value}' is not like {DEFAULT_NAMESPACE}")
    return value


def _topics(given: Mapping[str, str]) -> tuple[tuple[str, ...], str | None]:
    chosen = [name for name in ("topic", "topics", "topicsPattern") if name in given]
    if len(chosen) != 1:
        found = " and ".join(f"'{name}'" for name in chosen) or "none"
        raise OptionError(f"set exactly one of 'topic', 'topics', 'topicsPattern'; found {found}")
    value = given[chosen[0]].strip()
    if not value:
        raise OptionError(f"option '{chosen[0]}' is empty")
    if chosen[0] == "topicsPattern":
        try:
            re.compile(value)
        except re.error as error:
            raise OptionError(
                f"option 'topicsPattern': '{value}' is not a regular expression: {error}"
            ) from error
        return (), value
    if chosen[0] == "topic":
        return (value,), None
    if value.startswith("["):  # what Spark makes of load([a, b])
        return tuple(dict.fromkeys(json.loads(value))), None
    return _names("topics", value), None


def _service_url(given: Mapping[str, str]) -> str:
    value = given.get("serviceUrl") or os.environ.get(SERVICE_URL_VARIABLE, DEFAULT_SERVICE_URL)
    parts = urlsplit(value)
    if parts.scheme not in ("pulsar", "pulsar+ssl") or not parts.hostname:
        raise OptionError(f"option 'serviceUrl': '{value}' is not like {DEFAULT_SERVICE_URL}")
    return value


def _admin_url(given: Mapping[str, str], service_url: str) -> str:
    value = given.get("adminUrl")
    if value is None and "serviceUrl" not in given:
        value = os.environ.get(ADMIN_URL_VARIABLE)
    if value is None:
        parts = urlsplit(service_url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        secure = parts.scheme == "pulsar+ssl"
        return f"https://{host}:8443" if secure else f"http://{host}:8080"
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise OptionError(f"option 'adminUrl': '{value}' is not like http://localhost:8080")
    return value.rstrip("/")


def _point(given: Mapping[str, str], name: str, streaming: bool | None) -> StartingPoint | None:
    value = given.get(name)
    if value is None:
        return None
    point = parse_point(name, value)
    if point is Edge.LATEST and name == "startingOffsets" and streaming is False:
        raise OptionError("option 'startingOffsets': 'latest' is for spark.readStream only")
    if point is Edge.EARLIEST and name == "endingOffsets":
        raise OptionError("option 'endingOffsets': 'earliest' would read nothing")
    return point


def _subscription(given: Mapping[str, str]) -> str | None:
    value = given.get("subscription")
    if value is not None and not value.strip():
        raise OptionError("option 'subscription' is empty")
    return value


def _optional(given: Mapping[str, str], name: str, parse: Callable[[str, str], Any]) -> Any:
    return parse(name, given[name]) if name in given else None


def _names(name: str, value: str) -> tuple[str, ...]:
    parts = [part.strip() for part in value.split(",")]
    if not all(parts):
        raise OptionError(f"option '{name}': '{value}' has an empty name in it")
    return tuple(dict.fromkeys(parts))


def _positive(name: str, value: str) -> int:
    if not re.fullmatch(r"\d{1,12}", value.strip()) or int(value) < 1:
        raise OptionError(f"option '{name}': '{value}' is not a whole number from 1 up")
    return int(value)


def _size(name: str, value: str) -> int:
    match = _SIZE.fullmatch(value.strip())
    if match is None or int(match[1]) < 1:
        raise OptionError(f"option '{name}': '{value}' is not a size like 1048576, 64m or 1g")
    return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[match[2].lower()]


def _duration(name: str, value: str) -> float:
    match = _DURATION.fullmatch(value.strip())
    if match is None:
        raise OptionError(f"option '{name}': '{value}' is not a time like 500ms, 30s, 15m or 1h")
    return int(match[1]) * _SECONDS[match[2].lower()]


def _boolean(name: str, value: str) -> bool:
    if value.strip().lower() not in ("true", "false"):
        raise OptionError(f"option '{name}': '{value}' is neither true nor false")
    return value.strip().lower() == "true"
