"""Options: aliases, checks and what the messages say."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsark.admin_client.credentials import Credentials
from pulsark.datasource.options.errors import OptionError
from pulsark.datasource.options.offsets import Edge, Moment
from pulsark.datasource.options.option_docs import OPTIONS
from pulsark.datasource.options.options import Options
from pulsark.wire.message_id import MessageId


def parse(streaming: bool | None = None, **raw: str) -> Options:
    return Options.parse({"topic": "t"} | raw, streaming=streaming)


def refused(streaming: bool | None = None, **raw: str) -> str:
    with pytest.raises(OptionError) as caught:
        Options.parse(raw, streaming=streaming)
    return str(caught.value)


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PULSARK_SERVICE_URL", raising=False)
    monkeypatch.delenv("PULSARK_ADMIN_URL", raising=False)


def test_defaults() -> None:
    assert parse() == Options(
        service_url="pulsar://localhost:6650",
        names_service_url=False,
        admin_url="http://localhost:8080",
        credentials=Credentials(),
        topics=("t",),
        topics_pattern=None,
        view="messages",
        namespace="public/default",
        version_as_of=None,
        as_of_ms=None,
        starting=None,
        ending=None,
        latest_if_none_since=False,
        read_compacted=False,
        subscription=None,
        columns=None,
        include_properties=True,
        value_format="raw",
        value_schema=None,
        fail_on_new_columns=False,
        read_table_files=True,
        pushdown=False,
        min_partitions=None,
        max_records_per_partition=None,
        max_rows_per_trigger=None,
        max_bytes_per_trigger=None,
        min_rows_per_trigger=None,
        max_trigger_delay_s=900,
        fail_on_data_loss=True,
        wait_for_topic=False,
        poll_timeout_s=120.0,
        offset_retries=0,
        offset_retry_pause_s=0.01,
    )


def test_keys_come_lower_cased_and_dotted_spellings_work() -> None:
    raw = {
        "service.url": "pulsar://broker:6651",
        "admin.url": "http://broker:8081/",
        "predefinedsubscription": "s",
        "startingoffsets": "earliest",
        "polltimeoutms": "500",
        "failondataloss": "False",
        "maxbytespertrigger": "2m",
        "minpartitions": "7",
        "columns": "value, key",
    }
    options = Options.parse({"topics": "a, b,a"} | raw, streaming=True)
    assert options.service_url == "pulsar://broker:6651"
    assert options.admin_url == "http://broker:8081"
    assert options.subscription == "s"
    assert options.topics == ("a", "b")
    assert options.starting is Edge.EARLIEST
    assert options.poll_timeout_s == 0.5
    assert not options.fail_on_data_loss
    assert options.max_bytes_per_trigger == 2 << 20
    assert options.min_partitions == 7
    assert options.columns == ("value", "key")


@pytest.mark.parametrize("key", [key for doc in OPTIONS for key in (doc.name, *doc.aliases)])
def test_every_documented_name_and_alias_is_known(key: str) -> None:
    other = {} if key in ("topic", "path", "topics", "paths", "topicsPattern") else {"topic": "t"}
    valid = {
        "serviceUrl": "pulsar://h",
        "service.url": "pulsar://h",
        "adminUrl": "http://h",
        "authPluginClassName": "none",
        "admin.url": "http://h",
        "failOnDataLoss": "true",
        "startingOffsets": "earliest",
        "endingOffsets": "latest",
        "maxTriggerDelay": "1s",
        "view": "topics",
        "namespace": "a/b",
    }
    valid |= dict.fromkeys(
        ("includeProperties", "includeHeaders", "readTableFiles", "pushdown"), "false"
    )
    valid |= dict.fromkeys(("waitForTopic", "waitingForNonExistedTopic", "readCompacted"), "true")
    valid |= dict.fromkeys(
        ("startingOffsetsByTimestamp", "endingOffsetsByTimestamp"), '{"t": {"0": 1}}'
    )
    if key == "schemaEvolutionMode":
        valid, other = {key: "ignore"}, {**other, "valueFormat": "auto"}
    valid |= {"startingOffsetsByTimestampStrategy": "latest", "valueFormat": "string"}
    if key.endswith(("authPluginClassName", "authParams")):
        valid |= dict.fromkeys(("pulsar.client.authPluginClassName",), "none")
        other["authPluginClassName"] = "none"
    if key == "valueSchema":
        other["valueFormat"] = "json"
    if key == "startingOffsetsByTimestampStrategy":
        other["startingTimestamp"] = "1"
    if key == "maxTriggerDelay":
        other["minRowsPerTrigger"] = "1"
    if key == "namespace":
        other = {"view": "topics"}
    Options.parse({key.lower(): valid.get(key, "1")} | other)


@pytest.mark.parametrize(
    ("service_url", "admin_url"),
    [
        ("pulsar://h:6650", "http://h:8080"),
        ("pulsar+ssl://h:6651", "https://h:8443"),
        ("pulsar://[::1]:6650", "http://[::1]:8080"),
    ],
)
def test_the_admin_url_follows_the_service_url(service_url: str, admin_url: str) -> None:
    assert parse(serviceUrl=service_url).admin_url == admin_url


def test_a_login_comes_from_options_or_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plugin = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
    given = parse(authPluginClassName=plugin, authParams="token:canary-1").credentials
    assert given.headers()["Authorization"] == "Bearer canary-1"
    assert "canary" not in repr(parse(authPluginClassName=plugin, authParams="token:canary-1"))
    (tmp_path / "token").write_text("two")
    monkeypatch.setenv("PULSARK_TOKEN_FILE", str(tmp_path / "token"))
    assert parse().credentials.headers()["Authorization"] == "Bearer two"
    given = parse(authPluginClassName=plugin, authParams="token:canary-1").credentials
    assert given.headers()["Authorization"] == "Bearer canary-1"
    with pytest.raises(OptionError, match="without 'authPluginClassName'"):
        parse(authParams="token:canary-1")
    with pytest.raises(OptionError, match="authPluginClassName=x"):
        parse(authPluginClassName="x")


def test_the_environment_gives_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULSARK_SERVICE_URL", "pulsar://env:1")
    monkeypatch.setenv("PULSARK_ADMIN_URL", "http://env:2")
    assert parse().service_url == "pulsar://env:1"
    assert parse().admin_url == "http://env:2"
    assert parse(serviceUrl="pulsar://given:1").admin_url == "http://given:8080"


def test_an_unknown_option_names_the_near_miss_and_all_valid_ones() -> None:
    message = refused(topcs="t")
    assert message.startswith("pulsark: option 'topcs' is unknown; did you mean 'topics'? ")
    for doc in OPTIONS:
        assert doc.name in message


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("subscribe", "topics"),
        ("kafka.group.id", "subscription"),
        ("maxRowPerTriger", "maxRowsPerTrigger"),
        ("startingOfsets", "startingOffsets"),
        ("predefinedSubscriptions", "subscription"),
    ],
)
def test_names_of_other_sources_and_near_misses(key: str, meant: str) -> None:
    assert f"option '{key}' is unknown; did you mean '{meant}'? " in refused(**{key: "1"})


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("30s", 30), ("15 m", 900), ("1h", 3600), ("2D", 172_800)]
)
def test_durations(text: str, seconds: float) -> None:
    options = parse(minOffsetsPerTrigger="5", maxTriggerDelay=text)
    assert options.max_trigger_delay_s == seconds
    assert options.min_rows_per_trigger == 5


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ({}, "found none. Spark hands no option of a table made with CREATE TABLE over"),
        ({"columns": "key"}, "exactly one of 'topic', 'topics', 'topicsPattern'; found none"),
        ({"topic": "a", "topics": "b"}, "found 'topic' and 'topics'"),
        ({"topic": "a", "path": "b"}, "'topic' and 'path' mean the same"),
        ({"topic": " "}, "option 'topic' is empty"),
        ({"topics": "a,,b"}, "empty name"),
        ({"topicsPattern": "a("}, "not a regular expression"),
        ({"topic": "t", "serviceUrl": "http://x"}, "'http://x' is not like pulsar://"),
        ({"topic": "t", "adminUrl": "localhost:8080"}, "is not like http://"),
        ({"topic": "t", "minPartitions": "0"}, "not a whole number from 1 up"),
        ({"topic": "t", "pollTimeoutMs": "1s"}, "not a whole number"),
        ({"topic": "t", "failOnDataLoss": "yes"}, "neither true nor false"),
        ({"topic": "t", "maxBytesPerTrigger": "many"}, "not a size"),
        ({"topic": "t", "namespace": "a/b"}, "'namespace' is for views"),
        ({"view": "cursor"}, "'cursor' is unknown; did you mean 'cursors'? Valid views: messages"),
        ({"view": "topics", "namespace": "a"}, "'a' is not like public/default"),
        ({"view": "topics", "namespace": "a/b", "topic": "t"}, "leave it or the topic out"),
        ({"view": "topics", "subscription": "s"}, "'subscription' is for messages, not for the"),
        ({"topic": "t", "maxRowsPerTrigger": "0"}, "not a whole number from 1 up"),
        ({"topic": "t", "minRowsPerTrigger": "1", "maxTriggerDelay": "15"}, "not a time like"),
        ({"topic": "t", "maxTriggerDelay": "15m"}, "nothing without 'minRowsPerTrigger'"),
        (
            {"topic": "t", "minRowsPerTrigger": "2", "maxRowsPerTrigger": "1"},
            "2 is more than 'maxRowsPerTrigger', which is 1",
        ),
        ({"topic": "t", "subscription": ""}, "'subscription' is empty"),
        ({"topic": "t", "endingOffsets": "earliest"}, "would read nothing"),
        ({"topic": "t", "startingOffsets": "now"}, "neither earliest, latest nor JSON"),
        ({"topic": "t", "startingTimestamp": "yesterday"}, "neither milliseconds since 1970 nor"),
        ({"topic": "t", "startingOffsetsByTimestamp": "5"}, "is not JSON like"),
        ({"topic": "t", "endingOffsetsByTimestamp": '{"t": {"0": "x"}}'}, "'x' is not a time in"),
        (
            {"topic": "t", "startingOffsetsByTimestampStrategy": "latest"},
            "nothing without 'startingTimestamp'",
        ),
        ({"topic": "t", "valueFormat": "strng"}, "'strng' is unknown; did you mean 'string'?"),
        ({"topic": "t", "valueFormat": "json"}, "'valueSchema' and 'valueFormat' json go together"),
        ({"topic": "t", "subscription": "a", "subscriptionPrefix": "b"}, "set one of"),
    ],
)
def test_bad_values_are_explained(raw: dict[str, str], says: str) -> None:
    assert says in refused(**raw)


def test_options_of_the_other_mode_are_refused() -> None:
    assert "spark.read, not for spark.readStream" in refused(
        True, topic="t", endingOffsets="latest"
    )
    assert "spark.readStream, not for spark.read" in refused(
        False, topic="t", maxBytesPerTrigger="1"
    )
    assert "'waitForTopic' is for spark.readStream" in refused(
        False, topic="t", waitForTopic="true"
    )
    assert "'endingTimestamp' is for spark.read, not" in refused(
        True, topic="t", endingTimestamp="1"
    )
    assert "for spark.readStream only" in refused(False, topic="t", startingOffsets="latest")


def test_a_view_is_of_named_topics_or_of_a_namespace() -> None:
    assert Options.parse({"view": "Topics"}).view == "topics"
    assert Options.parse({"view": "cursors", "namespace": "a/b"}).namespace == "a/b"
    assert Options.parse({"view": "cursors", "topics": "a,b"}).topics == ("a", "b")
    assert "'view' is for spark.read, not" in refused(True, view="topics", topic="t")


def test_offsets_in_json() -> None:
    options = parse(startingOffsets='{"t": {"0": "5:6", "1": "5:6:7", "2": "latest"}}')
    assert options.starting == {
        "t": {0: MessageId(5, 6), 1: MessageId(5, 6, batch_index=7), 2: Edge.LATEST}
    }
    assert parse(startingOffsets='{"t": "5:6:-1:3"}').starting == {
        "t": {-1: MessageId(5, 6, batch_index=3)}
    }


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1700000000123", 1_700_000_000_123),
        ("2023-11-14", 1_699_920_000_000),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-14 23:13:20+01:00", 1_700_000_000_000),
        ("1950-01-01", 0),
    ],
)
def test_times_and_that_they_count_more_than_offsets(text: str, ms: int) -> None:
    options = parse(startingTimestamp=text, startingOffsets="earliest", endingTime=text)
    assert (options.starting, options.ending) == (Moment(ms), Moment(ms))
    by_partition = parse(startingOffsetsByTimestamp='{"t": {"0": 5, "1": "6"}}')
    assert by_partition.starting == {"t": {0: Moment(5), 1: Moment(6)}}


def test_a_prefix_names_the_same_subscription_each_time() -> None:
    name = parse(subscriptionPrefix="job").subscription
    assert name is not None
    assert name.startswith("job-")
    assert parse(subscriptionPrefix="job").subscription == name
    other = Options.parse({"topic": "u", "subscriptionPrefix": "job"}).subscription
    assert other != name


def test_load_with_several_paths() -> None:
    assert Options.parse({"paths": '["a","b"]'}).topics == ("a", "b")
