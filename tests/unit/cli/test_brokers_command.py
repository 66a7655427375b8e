"""``pulsark brokers``, ``bookies``, ``bundles``, ``isolation`` against the real admin API."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from pulsark.admin_client.client import AdminClient, Answer
from pulsark.cli import main
from pulsark.cli.admin import bookies, brokers, isolation
from tests.support.two_brokers import Node, TwoBrokers

TOPIC = "persistent://public/default/t"


class Asking(AdminClient):
    """Asks one of two brokers."""

    def __init__(self, both: TwoBrokers, node: Node) -> None:
        super().__init__("http://in-memory")
        self._both = both
        self._node = node

    def request(self, method: str, path: str, body: Any = None) -> Answer:
        answer = self._both.call(self._node, method, f"/admin/v2{path}", body)
        return Answer(answer.status, answer.body)


@pytest.fixture
def both() -> Iterator[TwoBrokers]:
    found = TwoBrokers()
    yield found
    found.close()


@pytest.fixture
def run(
    both: TwoBrokers, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    for module in (bookies, brokers, isolation):
        monkeypatch.setattr(module, "admin_client", lambda url: Asking(both, both.a))

    def run_one(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["pulsark", *words])
        code: Any = 0
        try:
            main()
        except SystemExit as end:
            code = end.code
        said = capsys.readouterr()
        assert not code, said.err
        assert "--json" in words or all(len(line) <= 80 for line in said.out.splitlines())
        return str(said.out) + str(said.err)

    return run_one


def test_brokers_are_listed_and_one_leads(both: TwoBrokers, run: Any) -> None:
    ids = sorted(node.peer.broker_id for node in both.nodes)
    assert json.loads(run("brokers", "list", "--json")) == ids
    lines = run("brokers", "list").splitlines()
    leader = json.loads(run("brokers", "leader", "--json"))["brokerId"]
    assert leader in ids
    assert leader in run("brokers", "leader")
    assert [f"{each} (leader)" in "".join(lines) for each in ids] == [one == leader for one in ids]


def test_feature_levels_are_shown_and_remarked_while_they_differ(
    both: TwoBrokers, run: Any
) -> None:
    assert [line.split()[-1] for line in run("brokers", "list").splitlines()][-2:] == ["2", "2"]
    said = "feature level 2; the cluster is at 2\n"
    assert said in run("brokers", "show", both.b.peer.broker_id)
    both.a.broker.feature_levels.cluster = 0
    last = run("brokers", "list").splitlines()[-1]
    assert last == "The cluster is at feature level 0; see docs/cluster.md"


def test_a_broker_is_shown_with_its_bundles(both: TwoBrokers, run: Any) -> None:
    both.give(TOPIC, both.b)
    [bundle] = [one for one in both.b.broker.ownership.owned() if one.startswith("public/default")]
    broker = both.b.peer.broker_id
    shown = json.loads(run("brokers", "show", broker, "--json"))
    assert shown["webServiceUrl"] == both.b.peer.web_url
    assert bundle in shown["bundles"]
    assert f"  {bundle}\n" in run("brokers", "show", broker)


def test_a_bundle_is_split(both: TwoBrokers, run: Any) -> None:
    both.give(TOPIC, both.b)
    [name] = [
        one.rpartition("/")[2]
        for one in both.b.broker.ownership.owned()
        if one.startswith("public/default")
    ]
    parts = run("bundles", "split", "public/default", name).splitlines()
    assert len(parts) == 2
    listed = json.loads(run("bundles", "list", "public/default", "--json"))
    assert [listed[part] for part in parts] == [both.b.peer.broker_id] * 2
    low, high = (int(edge, 16) for edge in parts[0].split("_"))
    algorithm = "--split-algorithm-name", "range_equally_divide"
    words = "bundles", "split", "public/default", parts[0], "-u", *algorithm, "--json"
    halves = json.loads(run(*words))
    assert halves[0] == f"0x{low:08x}_0x{(low + high) // 2:08x}"
    listed = json.loads(run("bundles", "list", "public/default", "--json"))
    assert [listed[half] for half in halves] == [None, None]


def test_bundles_are_listed_with_their_brokers_and_moved(both: TwoBrokers, run: Any) -> None:
    both.give(TOPIC, both.b)
    [name] = [
        one.rpartition("/")[2]
        for one in both.b.broker.ownership.owned()
        if one.startswith("public/default")
    ]
    listed = json.loads(run("bundles", "list", "public/default", "--json"))
    assert listed[name] == both.b.peer.broker_id
    assert list(listed.values()).count(None) == len(listed) - 1
    lines = [line.split() for line in run("bundles", "list", "public/default").splitlines()]
    assert [name, both.b.peer.broker_id] in lines
    assert run("bundles", "unload", "public/default", name) == f"Unloaded {name}\n"
    assert json.loads(run("bundles", "list", "public/default", "--json"))[name] is None


def test_settings_of_all_brokers_are_changed_and_shown(both: TwoBrokers, run: Any) -> None:
    assert "maxTenants" in run("brokers", "list-dynamic-config").split()
    assert "maxTenants" in json.loads(run("brokers", "list-dynamic-config", "--json"))
    assert run("brokers", "get-all-dynamic-config") == ""
    types = "subscriptionTypesEnabled"
    for config, value in (("maxTenants", "7"), (types, "Shared,Failover")):
        said = run("brokers", "update-dynamic-config", "--config", config, "--value", value)
        assert said == f"Changed {config}\n"
    shown = run("brokers", "get-all-dynamic-config")
    assert shown == f"maxTenants=7\n{types}=Shared,Failover\n"
    assert json.loads(run("brokers", "get-runtime-config", "--json"))["maxTenants"] == "7"
    assert "maxTenants=7" in run("brokers", "get-runtime-config").splitlines()
    restored = run("brokers", "delete-dynamic-config", "--config", types)
    assert restored == f"Restored {types}\n"
    assert json.loads(run("brokers", "get-all-dynamic-config", "--json")) == {"maxTenants": "7"}


@pytest.mark.feature("F91")
def test_namespaces_are_kept_to_some_brokers(both: TwoBrokers, run: Any) -> None:
    command = "isolation"
    assert run("ns-isolation-policy", "list", "standalone") == "No isolation policies\n"
    broker = both.b.peer.broker_id
    options = ("--namespaces", "t/.*, u/" + "x" * 60, "--primary", broker)
    assert run(command, "set", "standalone", "p", *options) == "Set p\n"
    stored = json.loads(run(command, "get", "standalone", "p"))
    assert stored["namespaces"] == ["t/.*", "u/" + "x" * 60]
    assert stored["auto_failover_policy"]["parameters"] == {
        "min_limit": "1",
        "usage_threshold": "100",
    }
    assert json.loads(run(command, "list", "standalone", "--json")) == {"p": stored}
    assert f"  primary    {broker}\n" in run(command, "list", "standalone")
    lines = [line.split() for line in run(command, "brokers", "standalone").splitlines()]
    assert [broker, "p", "primary"] in lines
    assert [both.a.peer.broker_id, "-", "-"] in lines
    assert len(json.loads(run(command, "brokers", "standalone", "--json"))) == 2
    assert run(command, "delete", "standalone", "p") == "Deleted p\n"
    assert json.loads(run(command, "list", "standalone", "--json")) == {}


def test_bookies_are_listed_with_the_racks_that_were_set(both: TwoBrokers, run: Any) -> None:
    [bookie] = [each["bookieId"] for each in json.loads(run("bookies", "list", "--json"))]
    assert run("bookies", "racks", "list") == "No racks\n"
    assert run("bookies", "list").splitlines()[-1].split() == [bookie, "available", "-"]
    assert run("bookies", "racks", "set", bookie, "-r", "/r1", "-hn", "h") == (
        f"Set the rack of {bookie}\n"
    )
    assert run("bookies", "list").splitlines()[-1].split() == [bookie, "available", "/r1"]
    shown = run("bookies", "racks", "list").splitlines()[-1].split()
    assert shown == [bookie, "/r1", "default", "h"]
    stored = {"default": {bookie: {"rack": "/r1", "hostname": "h"}}}
    assert json.loads(run("bookies", "racks", "list", "--json")) == stored
    assert run("bookies", "racks", "delete", bookie) == f"Deleted the rack of {bookie}\n"
    assert json.loads(run("bookies", "racks", "list", "--json")) == {}


def test_a_rack_of_a_bookie_that_is_not_there_is_set_and_said(run: Any) -> None:
    [bookie] = [each["bookieId"] for each in json.loads(run("bookies", "list", "--json"))]
    assert run("bookies", "racks", "set", "m1:3181", "-r", "/r1").splitlines() == [
        "Set the rack of m1:3181",
        f"pulsark: there is no bookie m1:3181 now; there are: {bookie}",
    ]


def test_health(both: TwoBrokers, run: Any) -> None:
    said = run("brokers", "health")
    assert "publishes are taken" in said
    assert json.loads(run("brokers", "health", "--json"))["status"] == "OK"
