"""The admin API of brokers in several processes: whichever is asked, the answer is the same."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.python_client import connected
from tests.support.several_brokers import spread, wait_for
from tests.support.standalone import Standalone

PARTITIONS = 8
DOMAIN = "/admin/v2/persistent/public/default"


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("two") / "data", "--brokers", "2") as standalone:
        yield standalone


def ask(url: str, method: str, path: str, body: Any = None) -> Any:
    content = None if body is None else json.dumps(body).encode()
    headers = {} if body is None else {"content-type": "application/json"}
    request = urllib.request.Request(f"{url}{path}", content, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            found = answer.read()
            return json.loads(found) if found else None
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{error.code}: {error.read().decode()}") from None


def urls(two: Standalone) -> list[str]:
    """The own one of each broker, and that of all."""
    return [*(broker["webServiceUrl"] for broker in two.info["brokers"]), two.web_url]


@pytest.mark.feature("F61", "F83")
def test_any_broker_answers_about_all_partitions(two: Standalone) -> None:
    first, second, _ = urls(two)
    ask(first, "PUT", f"{DOMAIN}/p/partitions", PARTITIONS)
    earliest = {"ledgerId": -1, "entryId": -1}
    ask(second, "PUT", f"{DOMAIN}/p/subscription/s", earliest)
    spread(two, [f"p-partition-{number}" for number in range(PARTITIONS)])
    with connected(two) as client:
        producer = client.create_producer("p")
        for number in range(10 * PARTITIONS):
            producer.send(f"{number}".encode())
    for url in urls(two):
        stats = ask(url, "GET", f"{DOMAIN}/p/partitioned-stats")
        assert stats["msgInCounter"] == 10 * PARTITIONS
        assert stats["subscriptions"]["s"]["msgBacklog"] == 10 * PARTITIONS
        assert len(stats["partitions"]) == PARTITIONS
        one = ask(url, "GET", f"{DOMAIN}/p-partition-3/stats")
        assert (
            one["msgInCounter"]
            == stats["partitions"]["persistent://public/default/p-partition-3"]["msgInCounter"]
        )
    ask(second, "POST", f"{DOMAIN}/p/subscription/s/skip_all")
    stats = ask(first, "GET", f"{DOMAIN}/p/partitioned-stats")
    assert stats["subscriptions"]["s"]["msgBacklog"] == 0
    ask(first, "POST", f"{DOMAIN}/p/partitions", 2 * PARTITIONS)
    more = ask(second, "GET", f"{DOMAIN}/p/partitioned-stats")
    assert all("s" in each["subscriptions"] for each in more["partitions"].values())
    assert len(more["partitions"]) == 2 * PARTITIONS
    ask(second, "DELETE", f"{DOMAIN}/p/partitions?force=true")
    for url in urls(two):
        assert ask(url, "GET", DOMAIN) == []


@pytest.mark.feature("F61", "F82")
def test_clients_go_on_while_their_bundle_is_split(two: Standalone) -> None:
    lookup = "/lookup/v2/topic/persistent/public/default/q"
    with connected(two) as client:
        consumer = client.subscribe("q", "s")
        producer = client.create_producer("q")
        for number in range(20):
            producer.send(b"%d" % number)
            message = consumer.receive(10_000)
            while int(message.data()) < number:  # acknowledged, but not heard of at the split
                consumer.acknowledge(message)
                message = consumer.receive(10_000)
            assert int(message.data()) == number
            if number != 19:
                consumer.acknowledge(message)
            if number % 10 == 5:
                with urllib.request.urlopen(f"{two.web_url}{lookup}/bundle") as answer:
                    bundle = answer.read().decode()
                unload = str(number == 15).lower()
                path = f"/admin/v2/namespaces/public/default/{bundle}/split?unload={unload}"
                ask(two.web_url, "PUT", path)
        consumer.close()
        consumer = client.subscribe("q", "s")
        assert int(consumer.receive(10_000).data()) == 19
    edges = ask(two.web_url, "GET", "/admin/v2/namespaces/public/default/bundles")["boundaries"]
    assert len(edges) == 5 + 2
    for url in urls(two):
        assert ask(url, "GET", f"{DOMAIN}/q/stats")["subscriptions"]["s"]["msgBacklog"] == 1


def test_a_setting_is_changed_for_the_brokers_of_all_processes(two: Standalone) -> None:
    config = "/admin/v2/brokers/configuration"

    def in_force(value: str) -> bool:
        found = [ask(url, "GET", f"{config}/runtime")["maxTenants"] for url in urls(two)]
        return set(found) == {value}

    ask(two.web_url, "POST", f"{config}/maxTenants/500")
    wait_for(lambda: in_force("500"))
    ask(two.web_url, "DELETE", f"{config}/maxTenants")
    wait_for(lambda: in_force("0"))


@pytest.mark.feature("F61")
def test_brokers_and_bundles_are_shown_by_commands(two: Standalone) -> None:
    def run(*words: str) -> str:
        command = [sys.executable, "-m", "pulsark", *words, "--admin-url", two.web_url]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    ids = [url.removeprefix("http://") for url in urls(two)[:2]]
    assert json.loads(run("brokers", "list", "--json")) == sorted(ids)
    assert json.loads(run("brokers", "leader", "--json"))["brokerId"] in ids
    listed = json.loads(run("bundles", "list", "public/default", "--json"))
    name = next(iter(listed))
    run("bundles", "unload", "public/default", name, "-d", ids[1])
    shown = json.loads(run("brokers", "show", ids[1], "--json"))
    assert f"public/default/{name}" in shown["bundles"]
