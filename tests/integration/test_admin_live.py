"""The admin API and the command line against a real standalone."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pulsar
import pytest

from pulsark.admin_client.client import AdminClient, AdminError
from tests.support.python_client import connected
from tests.support.standalone import Standalone

NAMESPACE = "/persistent/public/default"


@pytest.fixture
def client(shared_standalone: Standalone) -> Iterator[pulsar.Client]:
    """The official client with an HTTP address: its lookups go through the admin port."""
    url = shared_standalone.web_url
    with connected(shared_standalone, url=url) as client:
        yield client


def pulsark(
    standalone: Standalone | None, *arguments: str, stdin: str = "", code: int = 0
) -> tuple[str, str]:
    """Run a command against a standalone; returns what it printed."""
    urls = {}
    if standalone is not None:
        urls = {
            "PULSARK_ADMIN_URL": standalone.web_url,
            "PULSARK_SERVICE_URL": standalone.service_url,
        }
    done = subprocess.run(
        [sys.executable, "-m", "pulsark", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **urls, "COLUMNS": "80"},
    )
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


# -- the client over HTTP ---------------------------------------


@pytest.mark.feature("F61", "F83")
def test_lookups_over_http(client: pulsar.Client, admin: AdminClient) -> None:
    producer = client.create_producer("http-lookup")
    consumer = client.subscribe("http-lookup", "s")
    producer.send(b"hello")
    assert consumer.receive(60_000).data() == b"hello"


def test_partitions_over_http(client: pulsar.Client, admin: AdminClient) -> None:
    admin.call("PUT", f"{NAMESPACE}/http-partitions/partitions", 3)
    producer = client.create_producer("http-partitions")
    consumer = client.subscribe("http-partitions", "s")
    sent = {f"m{i}".encode() for i in range(12)}
    for payload in sent:
        producer.send(payload)
    assert {consumer.receive(60_000).data() for _ in sent} == sent
    stats = admin.get(f"{NAMESPACE}/http-partitions/partitioned-stats")
    assert stats["msgInCounter"] == 12
    assert len(stats["partitions"]) == 3


def test_a_pattern_over_http(client: pulsar.Client, admin: AdminClient) -> None:
    producers = [client.create_producer(f"http-pattern-{i}") for i in range(2)]
    consumer = client.subscribe(
        re.compile("persistent://public/default/http-pattern-.*"),
        "s",
        initial_position=pulsar.InitialPosition.Earliest,
    )
    for producer in producers:
        producer.send(b"x")
    assert len({consumer.receive(60_000).topic_name() for _ in producers}) == 2


# -- what live clients look like --------------------------------


@pytest.mark.feature("F92")
def test_statistics_of_live_clients(client: pulsar.Client, admin: AdminClient) -> None:
    producer = client.create_producer("live", producer_name="p-1", properties={"app": "x"})
    consumer = client.subscribe("live", "s", consumer_name="c-1")
    for _ in range(3):
        producer.send(b"x" * 100)
    consumer.acknowledge(consumer.receive(60_000))
    consumer.receive(60_000)
    stats = admin.get(f"{NAMESPACE}/live/stats")
    assert stats["msgInCounter"] == 3
    assert stats["msgRateIn"] > 0
    (publisher,) = stats["publishers"]
    assert publisher["producerName"] == "p-1"
    assert publisher["metadata"] == {"app": "x"}
    assert publisher["address"].startswith("/127.0.0.1:")
    assert "CPP" in publisher["clientVersion"] or publisher["clientVersion"]
    subscription = stats["subscriptions"]["s"]
    assert subscription["type"] == "Exclusive"
    assert subscription["activeConsumerName"] == "c-1"
    assert subscription["msgOutCounter"] == 3
    with pytest.raises(AdminError, match="answered 412"):
        admin.call("DELETE", f"{NAMESPACE}/live")
    with pytest.raises(AdminError, match="answered 412"):
        admin.call("DELETE", f"{NAMESPACE}/live/subscription/s")


def test_what_the_admin_api_does_reaches_the_consumer(
    client: pulsar.Client, admin: AdminClient
) -> None:
    admin.call("PUT", f"{NAMESPACE}/reset/subscription/s", {"ledgerId": -1, "entryId": -1})
    producer = client.create_producer("reset")
    ids = [producer.send(f"m{i}".encode()) for i in range(4)]
    consumer = client.subscribe("reset", "s")
    for i in range(4):
        message = consumer.receive(60_000)
        assert message.data() == f"m{i}".encode()
        consumer.acknowledge(message)
    body = {"ledgerId": ids[2].ledger_id(), "entryId": ids[2].entry_id()}
    admin.call("POST", f"{NAMESPACE}/reset/subscription/s/resetcursor", body)
    assert consumer.receive(60_000).data() == b"m2"
    admin.call("POST", f"{NAMESPACE}/reset/subscription/s/skip_all")
    producer.send(b"m4")
    while (message := consumer.receive(60_000)).data() != b"m4":
        assert message.data() in (b"m2", b"m3")  # was on its way already
    admin.call("PUT", f"{NAMESPACE}/reset/unload")
    producer.send(b"m5")
    while consumer.receive(60_000).data() != b"m5":
        pass


@pytest.mark.feature("F92")
def test_peek(client: pulsar.Client, shared_standalone: Standalone, admin: AdminClient) -> None:
    admin.call("PUT", f"{NAMESPACE}/peek/subscription/s", {"ledgerId": -1, "entryId": -1})
    producer = client.create_producer("peek", compression_type=pulsar.CompressionType.ZSTD)
    message_id = producer.send(
        b"x" * 100, partition_key=" k\r\n\u00fc ", properties={"a": "\u4f60"}
    )
    path = f"{shared_standalone.web_url}/admin/v2{NAMESPACE}/peek"
    place = f"{message_id.ledger_id()}:{message_id.entry_id()}"
    for target in (
        "subscription/s/position/1",
        f"ledger/{place.replace(':', '/entry/')}",
        "examinemessage?initialPosition=earliest",
    ):
        with urllib.request.urlopen(f"{path}/{target}", timeout=60) as answer:
            assert answer.read() == b"x" * 100
            assert answer.headers["X-Pulsar-Message-ID"] == place
            assert answer.headers["X-Pulsar-partition-key"] == "k??\u00fc"
            assert json.loads(answer.headers["X-Pulsar-PROPERTY"]) == {"a": "\u4f60"}
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{path}/subscription/s/position/2", timeout=60)


@pytest.mark.feature("F92")
def test_what_was_skipped_and_the_replicated_flag_survive_a_kill(standalone: Standalone) -> None:
    admin = AdminClient(standalone.web_url)
    admin.call("PUT", f"{NAMESPACE}/t/subscription/s", {"ledgerId": -1, "entryId": -1})
    admin.call("POST", f"{NAMESPACE}/t/subscription/s/replicatedSubscriptionStatus", True)
    pulsark(standalone, "produce", "t", "-m", "a", "-n", "3")
    admin.call("POST", f"{NAMESPACE}/t/subscription/s/skip_all")
    standalone.kill()
    standalone.start()
    stats = AdminClient(standalone.web_url).get(f"{NAMESPACE}/t/stats")["subscriptions"]["s"]
    assert (stats["msgBacklog"], stats["isReplicated"]) == (0, True)


def test_acknowledgements_for_spark_survive_a_kill(standalone: Standalone) -> None:
    admin = AdminClient(standalone.web_url)
    earliest = {"ledgerId": -1, "entryId": -1}
    admin.call("PUT", f"{NAMESPACE}/t/subscription/spark", earliest)
    pulsark(standalone, "produce", "t", "-m", "a", "-n", "1")
    pulsark(standalone, "produce", "t", "-m", "b", "-n", "1")
    plan = admin.get(f"{NAMESPACE}/t/segments")
    asked = {"topics": {plan["topic"]: [], "persistent://public/default/no-such": [3]}}
    assert admin.call("POST", "/spark-plans", asked) == {"topics": [plan]}
    first = plan["partitions"][0]["first"]
    admin.call("POST", f"{NAMESPACE}/t/subscription/spark/acknowledge", first)
    standalone.kill()
    standalone.start()
    again = AdminClient(standalone.web_url)
    stats = again.get(f"{NAMESPACE}/t/stats")
    assert stats["subscriptions"]["spark"]["msgBacklog"] == 1
    plan_again = again.get(f"{NAMESPACE}/t/segments")
    assert plan_again["topicId"] == plan["topicId"]
    assert plan_again["partitions"][0]["first"] == first


# -- the command line -------------------------------------------


def test_produce_and_consume(shared_standalone: Standalone) -> None:
    out, _ = pulsark(shared_standalone, "produce", "cli-1", "-m", "eins", "-m", "zwei", "-n", "2")
    assert len(out.splitlines()) == 4
    lines = [f"line {i}" for i in range(2500)]
    out, _ = pulsark(
        shared_standalone, "produce", "cli-1", "-k", "k", "--json", stdin="\n".join(lines)
    )
    ids = [json.loads(line)["messageId"] for line in out.splitlines()]
    assert len(set(ids)) == 2500
    command = "consume cli-1 -s s -n 2504 --position earliest --timeout 60 --json"
    out, _ = pulsark(shared_standalone, *command.split())
    found = [json.loads(line) for line in out.splitlines()]
    assert [m["payload"] for m in found] == ["eins", "zwei"] * 2 + lines
    assert [m["messageId"] for m in found[4:]] == ids
    assert {m["key"] for m in found[4:]} == {"k"}
    stats = json.loads(pulsark(shared_standalone, "topics", "stats", "cli-1", "--json")[0])
    assert stats["subscriptions"]["s"]["msgBacklog"] == 0


@pytest.mark.feature("F27", "F80")
def test_namespaces_and_policies(shared_standalone: Standalone) -> None:
    def call(*arguments: str) -> str:
        return pulsark(shared_standalone, *arguments)[0]

    namespace, topic = "public/cli-n", "persistent://public/cli-n/t"
    assert call("namespaces", "create", namespace) == f"Created {namespace}\n"
    assert namespace in call("namespaces", "list").splitlines()
    retention = {"retentionTimeInMinutes": 5, "retentionSizeInMB": 7}
    done = call("policies", "set", namespace, "retention", json.dumps(retention))
    assert done == f"Set retention of {namespace}\n"
    call("policies", "set", namespace, "schemaCompatibilityStrategy", "FORWARD")
    quota = {"limitSize": 1, "policy": "producer_exception"}
    call("policies", "set", namespace, "backlogQuota", json.dumps(quota))
    found = json.loads(call("policies", "get", namespace))
    assert found["retention_policies"] == retention
    assert found["schema_compatibility_strategy"] == "FORWARD"
    call("topics", "create", topic)
    call("policies", "set", topic, "messageTTL", "60")
    assert json.loads(call("policies", "get", topic, "messageTTL")) == 60
    assert json.loads(call("policies", "get", topic, "retention")) is None
    assert json.loads(call("policies", "get", topic, "retention", "--applied")) == retention
    quotas = json.loads(call("policies", "get", topic, "backlogQuota", "--applied"))
    assert quotas["destination_storage"]["limitSize"] == 1
    call("policies", "remove", namespace, "backlogQuota", "-t", "destination_storage")
    call("policies", "remove", topic, "messageTTL")
    assert json.loads(call("policies", "get", topic, "messageTTL")) is None
    admin = AdminClient(shared_standalone.web_url)
    admin.call("DELETE", "/persistent/public/cli-n/t")
    assert call("namespaces", "delete", namespace) == f"Deleted {namespace}\n"


@pytest.mark.feature("F79")
def test_tenants_and_permissions(shared_standalone: Standalone) -> None:
    def call(*arguments: str) -> str:
        return pulsark(shared_standalone, *arguments)[0]

    assert call("tenants", "create", "cli-tenant", "--admin-role", "boss") == "Created cli-tenant\n"
    assert "cli-tenant" in call("tenants", "list").splitlines()
    call("namespaces", "create", "cli-tenant/n")
    call("permissions", "grant", "cli-tenant/n", "waiter", "produce", "consume")
    found = json.loads(call("permissions", "show", "cli-tenant/n", "--json"))
    assert {role: sorted(actions) for role, actions in found.items()} == {
        "waiter": ["consume", "produce"]
    }
    call("permissions", "revoke", "cli-tenant/n", "waiter")
    assert call("permissions", "show", "cli-tenant/n") == "Nothing was granted\n"
    call("namespaces", "delete", "cli-tenant/n")
    assert call("tenants", "delete", "cli-tenant") == "Deleted cli-tenant\n"
    assert "cli-tenant" not in call("tenants", "list").splitlines()


@pytest.mark.feature("F44")
def test_produce_and_consume_what_is_not_stored(shared_standalone: Standalone) -> None:
    topic = "non-persistent://public/default/cli-5"
    out, _ = pulsark(shared_standalone, "topics", "create", topic)
    assert out == f"Created {topic}\n"
    command = f"consume {topic} -s s -n 1 --timeout 60 --json"
    consuming = subprocess.Popen(
        [sys.executable, "-m", "pulsark", *command.split()],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PULSARK_SERVICE_URL": shared_standalone.service_url},
    )
    try:
        for _ in range(50):
            out, _ = pulsark(shared_standalone, "produce", topic, "-m", "now", "--json")
            assert json.loads(out)["messageId"].startswith("0:0:")
            if consuming.poll() is not None:
                break
        out, _ = consuming.communicate(timeout=60)
    finally:
        consuming.kill()
        consuming.wait()
    assert json.loads(out)["payload"] == "now"
    out, _ = pulsark(shared_standalone, "topics", "stats", topic)
    assert f"{topic}\n" in out
    found = json.loads(pulsark(shared_standalone, "topics", "list", "--json")[0])
    assert {"topic": topic, "partitions": 0} in found


def test_consume_says_when_too_little_came(shared_standalone: Standalone) -> None:
    pulsark(shared_standalone, "produce", "cli-2", "-m", "one")
    command = "consume cli-2 -s s -n 5 --position earliest --timeout 0.5"
    out, error = pulsark(shared_standalone, *command.split(), code=1)
    assert out == "one\n"
    assert error == "pulsark: 1 of 5 messages came; nothing more for 0.5 s\n"


@pytest.mark.feature("F91")
def test_topics(shared_standalone: Standalone) -> None:
    pulsark(shared_standalone, "topics", "create", "cli-3")
    out, _ = pulsark(shared_standalone, "topics", "create", "cli-4", "-p", "3")
    assert out == "Created persistent://public/default/cli-4 with 3 partitions\n"
    _, error = pulsark(shared_standalone, "topics", "create", "cli-3", code=1)
    assert "answered 409: This topic already exists" in error
    out, _ = pulsark(shared_standalone, "topics", "list")
    assert re.search(r"persistent://public/default/cli-4 +3\b", out)
    found = json.loads(pulsark(shared_standalone, "topics", "list", "--json")[0])
    assert {"topic": "persistent://public/default/cli-3", "partitions": 0} in found
    pulsark(shared_standalone, "produce", "cli-4", "-m", "x")
    out, _ = pulsark(shared_standalone, "topics", "stats", "cli-4")
    assert "1 msg and" in out
    assert max(map(len, out.splitlines())) <= 80
    _, error = pulsark(shared_standalone, "topics", "stats", "none", code=1)
    assert "answered 404" in error


@pytest.mark.feature("F91")
def test_the_table_of_a_topic(shared_standalone: Standalone) -> None:
    _, error = pulsark(shared_standalone, "topics", "table", "cli-none", code=1)
    assert "does not exist" in error or "not found" in error.lower()
    pulsark(shared_standalone, "produce", "cli-5", "-m", "a", "-m", "b")
    _, error = pulsark(shared_standalone, "topics", "table", "cli-5", code=1)
    assert "Nothing of the topic is sealed yet" in error
    sealed, _ = pulsark(shared_standalone, "topics", "seal", "cli-5")
    assert pulsark(shared_standalone, "topics", "table", "cli-5")[0] == sealed
    assert pl.read_delta(sealed.strip())["value"].to_list() == [b"a", b"b"]
    pulsark(shared_standalone, "produce", "cli-5", "-m", "c")
    found = json.loads(pulsark(shared_standalone, "topics", "seal", "cli-5", "--json")[0])
    assert (found["uri"], found["rows"]) == (sealed.strip(), 3)


def test_schemas(shared_standalone: Standalone, tmp_path: Path) -> None:
    first, second = tmp_path / "first.avsc", tmp_path / "second.json"
    definition = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
    first.write_text(json.dumps(definition, indent=2))
    definition["fields"].append({"name": "b", "type": "int", "default": 0})  # type: ignore[attr-defined]
    payload = {"type": "AVRO", "schema": json.dumps(definition), "properties": {"owner": "me"}}
    second.write_text(json.dumps(payload))  # as pulsar-admin takes it

    def schemas(*arguments: str, code: int = 0, stdin: str = "") -> tuple[str, str]:
        return pulsark(shared_standalone, "schemas", *arguments, code=code, stdin=stdin)

    topic = "persistent://public/default/cli-schemas"
    assert schemas("upload", topic, str(first)) == (f"{topic} has it as version 0\n", "")
    out, _ = schemas("compatibility", topic, str(second))
    assert out == "compatible (FULL)\n"
    out, _ = schemas("upload", topic, str(second), "-p", "since=today", "--json")
    assert json.loads(out) == {"version": {"version": 1}}
    out, _ = schemas("get", topic)
    head, owner, since, *shown = out.splitlines()
    assert (head, owner, since) == ("version 1, AVRO", "  owner=me", "  since=today")
    assert json.loads("".join(shown)) == definition
    out, _ = schemas("get", topic, "-v", "0", "--json")
    assert json.loads(out)["data"] == first.read_text()
    assert (
        schemas("compatibility", topic, "-", "-t", "string", code=1)[0] == "incompatible (FULL)\n"
    )
    assert "answered 409" in schemas("upload", topic, "-", "-t", "string", code=1)[1]
    assert "answered 422" in schemas("upload", topic, "-", stdin="{", code=1)[1]
    assert schemas("delete", topic, "--force")[0] == f"{topic} has no schema\n"
    assert "answered 404" in schemas("get", topic, code=1)[1]


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("produce none/default/t -m x --json", "Namespace none/default does not exist"),
        ("produce ../t -m x", "this is no name of a topic"),
    ],
)
def test_what_the_broker_refuses_is_one_clear_line(
    shared_standalone: Standalone, command: str, reason: str
) -> None:
    out, error = pulsark(shared_standalone, *command.split(), code=1)
    assert out == ""
    assert error.startswith("pulsark: pulsar://")
    assert reason in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("command", [["produce", "t", "-m", "x"], ["consume", "t"]])
def test_no_broker_there(command: list[str]) -> None:
    _, error = pulsark(None, *command, "--service-url", "pulsar://127.0.0.1:1", code=1)
    assert error.count("\n") == 1
    assert "is it running?" in error


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_a_consumer_and_a_standalone_cleanly(
    tmp_path: Path, number: signal.Signals
) -> None:
    command = [sys.executable, "-m", "pulsark", "standalone", "--data-dir", str(tmp_path / "data")]
    command += ["--broker-port", "0", "--web-port", "0", "--flight-port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as broker:
        assert broker.stdout is not None
        info = json.loads(broker.stdout.readline())
        assert json.loads((tmp_path / "data/standalone.json").read_text()) == info
        consume = [sys.executable, "-u", "-m", "pulsark", "consume", "t", "--service-url"]
        consume += [info["brokerServiceUrl"], "--position", "earliest"]
        pulsark(None, "produce", "t", "-m", "x", "--service-url", info["brokerServiceUrl"])
        with subprocess.Popen(consume, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as consumer:
            assert consumer.stdout is not None
            assert consumer.stdout.readline() == b"x\n"
            consumer.send_signal(signal.SIGINT)
            _, error = consumer.communicate(timeout=60)
            assert (consumer.returncode, error) == (0, b"")
        broker.send_signal(number)
        _, error = broker.communicate(timeout=60)
        assert broker.returncode == 0
        assert b"Traceback" not in error
    assert not (tmp_path / "data/standalone.json").exists()


def test_a_locked_data_directory_is_one_clear_line(shared_standalone: Standalone) -> None:
    arguments = ["--broker-port", "0", "--web-port", "0", "--flight-port", "0"]
    directory = str(shared_standalone.data_dir)
    _, error = pulsark(None, "standalone", "--data-dir", directory, *arguments, code=1)
    assert error.splitlines()[-1].startswith("pulsark: dataDir")
    assert directory in error
    assert "Traceback" not in error


@pytest.mark.parametrize("option", ["--broker-port", "--web-port", "--flight-port"])
def test_a_port_in_use_is_one_clear_line(tmp_path: Path, option: str) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        ports = {"--broker-port": "0", "--web-port": "0", "--flight-port": "0", option: port}
        flags = [word for pair in ports.items() for word in pair]
        directory = str(tmp_path / "data")
        _, error = pulsark(None, "standalone", "--data-dir", directory, *flags, code=1)
    last = error.splitlines()[-1]
    assert f"port {port} is in use; stop the other process or choose another" in last
    assert "Traceback" not in error


def _accepts(url: str, address: str) -> bool:
    try:
        socket.create_connection((address, int(url.rsplit(":", 1)[1])), 5).close()
    except ConnectionRefusedError:
        return False
    return True


def test_only_this_machine_can_connect_unless_the_operator_asks_for_more(
    shared_standalone: Standalone, tmp_path: Path
) -> None:
    elsewhere = "127.0.0.2"  # no address that a standalone listens on by itself
    ports = ("brokerServiceUrl", "webServiceUrl", "flightUrl")
    for port in ports:
        assert _accepts(shared_standalone.info[port], "127.0.0.1")
        assert not _accepts(shared_standalone.info[port], elsewhere)
    assert "authentication is off" not in shared_standalone.log_path.read_text()
    with Standalone(tmp_path / "open", "--host", "0.0.0.0", "--insecure") as standalone:
        assert all(_accepts(standalone.info[port], elsewhere) for port in ports)
        said = standalone.log_path.read_text()
        assert "authentication is off" in said
        assert "set advertisedAddress" in said


def test_other_machines_without_a_login_need_a_word_of_the_operator(tmp_path: Path) -> None:
    _, error = pulsark(
        None, "standalone", "--data-dir", str(tmp_path / "data"), "--host", "0.0.0.0", code=1
    )
    assert error.count("\n") == 1
    assert "bindAddress=0.0.0.0" in error
    assert "--insecure" in error
    assert not (tmp_path / "data").exists()


def test_a_data_directory_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    directory = str(tmp_path / "file" / "data")
    _, error = pulsark(None, "standalone", "--data-dir", directory, code=1)
    assert error.count("\n") == 1
    assert str(tmp_path / "file") in error
