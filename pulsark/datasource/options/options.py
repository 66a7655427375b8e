"""The options of ``format("pulsark")``: names, aliases, checks.

Spark hands every option over as text under a lower-cased key and checks none of them, so an
unknown key is an error here: a silently ignored ``startingOfsets`` reads the wrong messages.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pulsark.admin_client.credentials import (
    AUTH_PARAMS,
    AUTH_PLUGIN,
    TOKEN_FILE,
    TRUST_CERTS,
    Credentials,
)
from pulsark.datasource.options.errors import OptionError
from pulsark.datasource.options.offsets import Edge, StartingPoint, parse_moments, parse_point
from pulsark.datasource.options.option_docs import (
    ADMIN_URL_VARIABLE,
    DEFAULT_SERVICE_URL,
    ELSEWHERE,
    OPTIONS,
    SERVICE_URL_VARIABLE,
)
from pulsark.datasource.options.option_values import (
    boolean,
    counted,
    duration,
    moment,
    names,
    one_of,
    positive,
    size,
)
from pulsark.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

DEFAULT_NAMESPACE = "public/default"
DEFAULT_POLL_TIMEOUT_MS = 120_000

MESSAGES = "messages"
CURSORS = "cursors"
VIEWS = (
    "topics",
    CURSORS,
    "cursor_history",
    "backlog",
    "schemas",
    "producers",
    "consumers",
    "ledgers",
)

_NAMES = {key.lower(): doc.name for doc in OPTIONS for key in (doc.name, *doc.aliases)}
BROKER = (
    "serviceUrl",
    "adminUrl",
    "authPluginClassName",
    "authParams",
    "tlsTrustCertsFilePath",
)
"""Options that say how to reach a broker."""
_OF_VIEWS = (
    *BROKER,
    "topic",
    "topics",
    "topicsPattern",
    "view",
    "namespace",
    "timestampAsOf",
    "columns",
    "minPartitions",
    "pollTimeoutMs",
)
_LOST = ". Spark hands no option of a table made with CREATE TABLE over: use CREATE TEMPORARY VIEW"
_NAMESPACE = re.compile(r"[^/\s]+/[^/\s]+")
_BATCH_ONLY = (
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "pushdown",
    "versionAsOf",
    "timestampAsOf",
)
_OF_THE_PRESENT = (
    "readCompacted",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
)
_STREAM_ONLY = (
    "maxRowsPerTrigger",
    "maxBytesPerTrigger",
    "minRowsPerTrigger",
    "maxTriggerDelay",
    "waitForTopic",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)


@dataclass(frozen=True, slots=True)
class Options:
    """Checked options. ``topics`` are as the user wrote them; exactly one of the two is set."""

    service_url: str
    names_service_url: bool
    """Whether the query itself says where the broker is."""
    admin_url: str
    credentials: Credentials
    topics: tuple[str, ...]
    topics_pattern: str | None
    view: str
    namespace: str
    version_as_of: int | None
    as_of_ms: int | None
    starting: StartingPoint | None
    ending: StartingPoint | None
    latest_if_none_since: bool
    read_compacted: bool
    subscription: str | None
    columns: tuple[str, ...] | None
    include_properties: bool
    value_format: str
    value_schema: str | None
    fail_on_new_columns: bool
    read_table_files: bool
    pushdown: bool
    min_partitions: int | None
    max_records_per_partition: int | None
    max_rows_per_trigger: int | None
    max_bytes_per_trigger: int | None
    min_rows_per_trigger: int | None
    max_trigger_delay_s: float
    fail_on_data_loss: bool
    wait_for_topic: bool
    poll_timeout_s: float
    offset_retries: int
    """How many times more a stream asks where its topics end."""
    offset_retry_pause_s: float

    @property
    def is_past(self) -> bool:
        """Whether a past state is to be read."""
        return self.version_as_of is not None or self.as_of_ms is not None

    @classmethod
    def parse(cls, raw: Mapping[str, str], *, streaming: bool | None = None) -> Options:
        """Check everything; ``OptionError``. ``streaming`` None leaves the mode open."""
        given = _canonical(raw)
        _check_mode(given, streaming)
        _check_rows(given)
        view = _view(given, streaming)
        topics, pattern = _topics(given) if view == MESSAGES else _view_topics(given)
        url = service_url(given)
        return cls(
            service_url=url,
            names_service_url="serviceUrl" in given,
            admin_url=admin_url(given, url),
            credentials=credentials(given),
            topics=topics,
            topics_pattern=pattern,
            view=view,
            namespace=_namespace(given),
            version_as_of=_version_as_of(given, topics),
            as_of_ms=_as_of(given, view),
            starting=_starting(given, streaming),
            ending=_ending(given),
            latest_if_none_since=_one_of(
                given, "startingOffsetsByTimestampStrategy", "error", "latest"
            )
            == "latest",
            read_compacted=_read_compacted(given, streaming),
            subscription=_subscription(given, topics, pattern),
            columns=_optional(given, "columns", names),
            include_properties=_flag(given, "includeProperties", True),
            value_format=_value_format(given),
            value_schema=given.get("valueSchema"),
            fail_on_new_columns=_fail_on_new_columns(given),
            read_table_files=_flag(given, "readTableFiles", True),
            pushdown=_flag(given, "pushdown", False),
            min_partitions=_optional(given, "minPartitions", positive),
            max_records_per_partition=_optional(given, "maxRecordsPerPartition", positive),
            max_rows_per_trigger=_optional(given, "maxRowsPerTrigger", positive),
            max_bytes_per_trigger=_optional(given, "maxBytesPerTrigger", size),
            min_rows_per_trigger=_optional(given, "minRowsPerTrigger", positive),
            max_trigger_delay_s=duration("maxTriggerDelay", given.get("maxTriggerDelay", "15m")),
            fail_on_data_loss=_flag(given, "failOnDataLoss", True),
            wait_for_topic=_flag(given, "waitForTopic", False),
            poll_timeout_s=(_optional(given, "pollTimeoutMs", positive) or DEFAULT_POLL_TIMEOUT_MS)
            / 1000,
            offset_retries=_optional(given, "fetchOffset.numRetries", counted) or 0,
            offset_retry_pause_s=counted(
                "fetchOffset.retryIntervalMs", given.get("fetchOffset.retryIntervalMs", "10")
            )
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
        _optional(given, name, positive) for name in ("minRowsPerTrigger", "maxRowsPerTrigger")
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


def _as_of(given: Mapping[str, str], view: str) -> int | None:
    """The past time that is asked for, in milliseconds since the epoch."""
    if "timestampAsOf" not in given:
        return None
    if view not in (MESSAGES, CURSORS):
        raise OptionError(
            f"option 'timestampAsOf' is for messages and the view {CURSORS}, not for {view}"
        )
    if view == MESSAGES:
        _check_past(given, "timestampAsOf")
    return moment("timestampAsOf", given["timestampAsOf"]).ms


def _version_as_of(given: Mapping[str, str], topics: tuple[str, ...]) -> int | None:
    """The version of the topic's table that is asked for."""
    if "versionAsOf" not in given:
        return None
    _check_past(given, "versionAsOf")
    if "timestampAsOf" in given:
        raise OptionError("set one of 'versionAsOf' and 'timestampAsOf'")
    if len(topics) != 1:
        raise OptionError(
            "option 'versionAsOf' is for one topic, because each has versions of its own; several "
            "are read with timestampAsOf"
        )
    return counted("versionAsOf", given["versionAsOf"])


def _check_past(given: Mapping[str, str], name: str) -> None:
    for other in _OF_THE_PRESENT:
        if given.get(other, "false").strip().lower() != "false":
            raise OptionError(f"options '{name}' and '{other}' do not go together; set one of them")
    if not _flag(given, "readTableFiles", True):
        raise OptionError(f"option '{name}' reads the files of the table: leave readTableFiles out")


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
        lost = "" if given else _LOST
        raise OptionError(
            f"set exactly one of 'topic', 'topics', 'topicsPattern'; found {found}{lost}"
        )
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
    return names("topics", value), None


def service_url(given: Mapping[str, str]) -> str:
    value = given.get("serviceUrl") or os.environ.get(SERVICE_URL_VARIABLE, DEFAULT_SERVICE_URL)
    parts = urlsplit(value)
    if parts.scheme not in ("pulsar", "pulsar+ssl") or not parts.hostname:
        raise OptionError(f"option 'serviceUrl': '{value}' is not like {DEFAULT_SERVICE_URL}")
    for address in parts.netloc.split(","):
        port = address.rpartition("]")[2].partition(":")[2]
        if port and not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 1 << 16):
            raise OptionError(f"option 'serviceUrl': '{value}': {port[:20]} is no port")
    return value


def admin_url(given: Mapping[str, str], service_url: str) -> str:
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


def credentials(given: Mapping[str, str]) -> Credentials:
    """By the options, else by the environment. Nothing of them is ever shown."""
    environment = dict(os.environ)
    named = {
        AUTH_PLUGIN: "authPluginClassName",
        AUTH_PARAMS: "authParams",
        TRUST_CERTS: "tlsTrustCertsFilePath",
    }
    if "authPluginClassName" in given:
        for variable in (AUTH_PARAMS, TOKEN_FILE):
            environment.pop(variable, None)
    elif "authParams" in given:
        raise OptionError("option 'authParams' does nothing without 'authPluginClassName'")
    environment |= {key: given[name] for key, name in named.items() if name in given}
    try:
        return Credentials.from_environment(environment)
    except ConfigError as error:
        raise OptionError(str(error)) from None


def _starting(given: Mapping[str, str], streaming: bool | None) -> StartingPoint | None:
    """Where to start; as with Kafka's source, a time counts more than offsets."""
    point = _time(given, "startingTimestamp", "startingOffsetsByTimestamp")
    if point is None and "startingOffsetsByTimestampStrategy" in given:
        raise OptionError(
            "option 'startingOffsetsByTimestampStrategy' does nothing without 'startingTimestamp'"
        )
    if point is None and "startingOffsets" in given:
        point = parse_point("startingOffsets", given["startingOffsets"])
        if point is Edge.LATEST and streaming is False:
            raise OptionError("option 'startingOffsets': 'latest' is for spark.readStream only")
    return point


def _ending(given: Mapping[str, str]) -> StartingPoint | None:
    point = _time(given, "endingTimestamp", "endingOffsetsByTimestamp")
    if point is None and "endingOffsets" in given:
        point = parse_point("endingOffsets", given["endingOffsets"])
        if point is Edge.EARLIEST:
            raise OptionError("option 'endingOffsets': 'earliest' would read nothing")
    return point


def _read_compacted(given: Mapping[str, str], streaming: bool | None) -> bool:
    wanted = _flag(given, "readCompacted", False)
    if wanted and streaming:
        raise OptionError(
            "option 'readCompacted' is for spark.read, not for spark.readStream: a stream reads "
            "its last batch again after a failure, and by then the topic may be compacted anew. "
            "Choose a time, read what was compacted with spark.read up to it (endingTimestamp), "
            "and start the stream there (startingTimestamp)"
        )
    return wanted


def _time(given: Mapping[str, str], for_all: str, by_partition: str) -> StartingPoint | None:
    if for_all in given:
        return moment(for_all, given[for_all])
    if by_partition in given:
        return parse_moments(by_partition, given[by_partition])
    return None


def _value_format(given: Mapping[str, str]) -> str:
    found = _one_of(given, "valueFormat", "raw", "string", "auto", "json")
    if (found == "json") != ("valueSchema" in given):
        raise OptionError("options 'valueSchema' and 'valueFormat' json go together; set both")
    return found


def _fail_on_new_columns(given: Mapping[str, str]) -> bool:
    mode = _one_of(given, "schemaEvolutionMode", "fail", "ignore")
    is_auto = _value_format(given) == "auto"
    if "schemaEvolutionMode" in given and not is_auto:
        raise OptionError("option 'schemaEvolutionMode' is for 'valueFormat' auto")
    return is_auto and mode == "fail"


def _subscription(
    given: Mapping[str, str], topics: tuple[str, ...], pattern: str | None
) -> str | None:
    value, prefix = given.get("subscription"), given.get("subscriptionPrefix")
    for name in ("subscription", "subscriptionPrefix"):
        if name in given and not given[name].strip():
            raise OptionError(f"option '{name}' is empty")
    if value is not None and prefix is not None:
        raise OptionError("set one of 'subscription' and 'subscriptionPrefix'")
    if prefix is None:
        return value
    # The same for every run of the query, so that a restart finds its own.
    of = hashlib.sha256("\n".join(sorted(topics) or [pattern or ""]).encode()).hexdigest()
    return f"{prefix}-{of[:12]}"


def _flag(given: Mapping[str, str], name: str, default: bool) -> bool:
    return boolean(name, given[name]) if name in given else default


def _one_of(given: Mapping[str, str], name: str, *valid: str) -> str:
    """One of some words, the first of which is the default."""
    return one_of(name, given[name], valid) if name in given else valid[0]


def _optional(given: Mapping[str, str], name: str, parse: Callable[[str, str], Any]) -> Any:
    return parse(name, given[name]) if name in given else None
