"""Every route, command and ticket, as every kind of role, at what is reserved or somebody else's.

One broker in memory has two tenants. The walk calls each route with each name in each of its slots:
the broker's own cursors, names that no subscription may have, the other tenant, and the system's
tenant. It expects a refusal with a reason and, whatever the answer is, that nothing has changed.

The lists come from the program: the table of routes, the handlers of commands, the methods of the
Flight server and the fields of its tickets. The walk fails if a route has a slot that ``OWN`` does
not know, and if a command or a field has no line here. What a body names is in ``BODIES``: each
route whose right depends on its body needs a line there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

from pulsark.admin.http.guard import InBody
from pulsark.dispatch.connection.handlers import HANDLERS
from pulsark.dispatch.connection.needs import NEEDS, Own
from pulsark.dispatch.spark.flight_rights import FlightRights
from pulsark.dispatch.spark.flight_server import EntryFlightServer, EntryTicket
from pulsark.dispatch.topic.topic import Topic
from pulsark.errors import ClientError
from pulsark.limits import SUBSCRIPTION_NAME_CHARS_MAX
from pulsark.metadata.resources import AUDIT_TOPIC, Tenant
from pulsark.security.facts import Rules
from pulsark.security.principal import Principal
from pulsark.storage.cursor.owners import COMPACTION_CURSOR, DEDUPLICATION_CURSOR
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.topic_name import TopicName
from tests.support.admin_api import AdminApi, Answer
from tests.support.broker_clients import Client, Command, scenario
from tests.support.routes import Route, routes_of
from tests.support.samples import sample_of

RULES = Rules(frozenset({"root"}))
GRANTS = {
    "writer": ["produce"],
    "reader": ["consume"],
    "worker": ["functions", "packages", "sources", "sinks"],
}
ROLES = (None, "stranger", "worker", "reader", "writer", "boss", "root")
"""Nobody, a role without rights, granted roles, the administrator of the tenant, a super user."""

OURS, THEIRS = "persistent://acme/web/clicks", "persistent://other/web/clicks"
SYSTEM = (COMPACTION_CURSOR, DEDUPLICATION_CURSOR)
RESERVED = (*SYSTEM, "pulsar.repl.west", "__compaction2", "pulsar.dedup.x")
UNFIT = ("", " ", "\n", "\x1b[2J", "a\x00", "\u202e", "n" * (SUBSCRIPTION_NAME_CHARS_MAX + 1))
BAD_NAMES = (*RESERVED, *UNFIT)

OWN = {
    "domain": "persistent",
    "tenant": "acme",
    "namespace": "web",
    "topic": "clicks",
    "subscription": "s",
    "cluster": "standalone",
    "bundle": "0x00000000_0x40000000",
    "group": "gold",
    "policy": "p",
    "role": "reader",
    "operation": "consume",
    "property": "k",
    "key": "k",
    "content": "1",
    "count": "1",
    "seconds": "1",
    "timestamp": "0",
    "place": "1",
    "ledger": "0",
    "entry": "0",
    "version": "0",
    "view": "cursors",
    "query": "q",
    "ident": "i",
    "topic_id": "0" * 32,
    "nr": "0",
    "name": "n",
    "kind": "LARGEST",
    "server": "broker:8080",
    "bookie": "b1",
    "allocator": "a",
    "rest": "any",
}
"""A name for each slot of a path. A new slot needs a line, and a thought: can it name what is
reserved, or somebody else's? Then it needs a place in ``FOREIGN`` or in ``_paths_with``, too."""

FOREIGN = {
    "another tenant": {"tenant": "other"},
    "the system": {"tenant": "pulsar", "namespace": "system", "topic": "audit"},
}
"""Slots that name what is not for a role of the tenant ``acme``."""

TOPICS = "/admin/v2/{domain:domain}/{tenant}/{namespace}/{topic}"
START = {"ledgerId": -1, "entryId": -1}
AT = {"ledgerId": 0, "entryId": 0}
LIMITS: dict[str, Any] = {"publishRateInMsgs": 1}


class Attack(NamedTuple):
    """A body that asks for what is not for a role; ``as_root`` if not even for super users."""

    body: Any
    as_root: bool = False


def _claims(topic: str, subscription: str | None, *, as_root: bool = False) -> Attack:
    return Attack({"client": "c", "subscription": subscription, "topics": [topic]}, as_root)


BODIES: dict[str, list[Attack]] = {
    "POST /admin/v2/namespaces/grantPermissionsOnTopics": [
        Attack([{"topic": topic, "role": "reader", "actions": ["produce"]}])
        for topic in (THEIRS, AUDIT_TOPIC)
    ],
    "POST /admin/v2/namespaces/revokePermissionsOnTopics": [
        Attack([{"topic": topic, "role": "rival", "actions": ["produce"]}])
        for topic in (THEIRS, AUDIT_TOPIC)
    ],
    "POST /admin/v2/spark-plans": [
        Attack({"topics": {topic: []}}) for topic in (THEIRS, AUDIT_TOPIC)
    ],
    "PUT /admin/v2/spark-queries/{query}": [
        *(_claims(topic, "s") for topic in (THEIRS, AUDIT_TOPIC)),
        *(_claims(OURS, name, as_root=True) for name in BAD_NAMES),
        _claims("persistent://acme/web/a\nb", "s", as_root=True),
    ],
    # These are about a query that the role has claimed, or about none.
    "GET /admin/v2/spark-queries": [],
    "POST /admin/v2/spark-queries/{query}": [Attack({"positions": {THEIRS: AT}}, True)],
    "DELETE /admin/v2/spark-queries/{query}": [Attack({}, True)],
    "PUT /admin/v2/spark-queries/{query}/progress": [Attack({"batchId": 1}, True)],
    "PUT /admin/v2/spark-queries/{query}/subscriptions": [Attack({"positions": {OURS: AT}}, True)],
    "POST /admin/v2/spark-queries/{query}/acknowledge": [Attack({"positions": {OURS: AT}}, True)],
    # What a body joins or sets, where the path is the role's own.
    "PUT /admin/v2/namespaces/{tenant}/{namespace}": [
        Attack({"resource_group_name": "gold"}),
        Attack({"bookie_affinity_group": {"bookkeeperAffinityGroupPrimary": "x"}}),
        Attack({"delayed_delivery_policies": {"active": False, "tickTime": 1000}}),
        Attack({"replication_clusters": ["elsewhere"]}),
    ],
    "POST /admin/v2/namespaces/{tenant}/{namespace}/resourcegroup": [Attack("gold")],
    "PUT /admin/v2/namespaces/{tenant}/{namespace}/resourcegroup": [Attack("gold")],
    "POST /admin/v2/namespaces/{tenant}/{namespace}/resourcegroup/{group}": [Attack(None)],
    "DELETE /admin/v2/namespaces/{tenant}/{namespace}/resourcegroup": [Attack(None)],
    "POST /admin/v2/namespaces/{tenant}/{namespace}/replication": [Attack(["elsewhere"])],
    "PUT /admin/v2/resourcegroups/{group}": [Attack(LIMITS)],
    "DELETE /admin/v2/resourcegroups/{group}": [Attack(None)],
    f"PUT {TOPICS}/shadowTopics": [Attack([THEIRS])],
    "POST /admin/v2/tenants/{tenant}": [Attack({"adminRoles": ["boss", "reader"]})],
}
"""By method and path. Each route that needs ``in_body`` is here."""

OF_SUBSCRIPTION = {
    "resetcursor": AT,
    "expireMessages": AT,
    "acknowledge": AT,
    "properties": {"a": "b"},
    "replicatedSubscriptionStatus": True,
    "dispatchRate": {"dispatchThrottlingRateInMsg": 1},
}
"""Bodies of routes on one subscription, by the end of the path."""


# -- one broker, and what is in it ---------------------------------------------------------------


def _policies() -> dict[str, Any]:
    return {"auth_policies": {"namespace_auth": GRANTS}}


async def _fill(resources: Any) -> None:
    await resources.tenants.create("acme", Tenant(("boss",), ("standalone",)))
    await resources.tenants.create("other", Tenant(("rival",), ("standalone",)))
    await resources.resource_groups.put("gold", {})
    await resources.namespaces.create("acme/web", policies=_policies())
    await resources.namespaces.create(
        "other/web", policies={"resource_group_name": "gold"}, by_super_user=True
    )


async def _deduplicate(topic: Topic) -> None:
    topic.set_policies(replace(topic.policies, deduplication=True))
    await topic.policies_obeyed()


class Walked:
    """A broker with two tenants, and what is stored in it."""

    def __init__(self) -> None:
        self.api = AdminApi(rules=RULES)
        api = self.api
        api.run(_fill(api.broker.resources))
        self.topics = [api.topic(name) for name in (OURS, THEIRS, AUDIT_TOPIC)]
        for topic in self.topics:
            api.publish(str(topic.name), *(b"m%d" % n for n in range(6)))
            api.run(topic.compactor.run())
            api.run(topic.registry.create("s", topic.ledger.last_confirmed, {}, durable=True))
            api.publish(str(topic.name), b"later", b"still later")
            api.run(_deduplicate(topic))
        for topic in self.topics:
            assert {COMPACTION_CURSOR, "s"} <= topic.subscriptions.keys()
            assert topic.deduplication_switch.cursor is not None
        self.routes = list(routes_of(api.app))

    def stored(self) -> dict[str, Any]:
        """Everything that a request could have changed."""
        tree = self.api.broker.metadata.tree
        found: dict[str, Any] = {
            path: node.value
            for path, node in tree._nodes.items()
            if not path.startswith(("/loadbalance", "/counters", "/namespace", "/owners"))
        }
        for topic in self.topics:
            own = topic.deduplication_switch.cursor
            for cursor in (own, *(each.cursor for each in topic.subscriptions.values())):
                if cursor is None:
                    continue
                acked = cursor.state
                marks = {ledger: bytes(each.serialize()) for ledger, each in acked.acked.items()}
                kept = dict(cursor.properties)
                found[f"{topic.name} {cursor.name}"] = acked.mark_delete, acked.era, marks, kept
            found[f"{topic.name} entries"] = topic.ledger.last_confirmed, topic.ledger.entries
        return found

    def call(self, role: str | None, method: str, path: str, body: Any) -> Answer:
        self.api.principal = None if role is None else Principal(role)
        return self.api.call(method, path, body)


@pytest.fixture(scope="module")
def walked() -> Iterator[Walked]:
    found = Walked()
    yield found
    found.api.close()


class Walk:
    """Calls that must not have an effect; ``wrong`` says which had one, or were not refused."""

    def __init__(self, walked: Walked) -> None:
        self._walked = walked
        self._before = walked.stored()
        self.wrong: list[str] = []
        self.calls = 0

    def refused(
        self, role: str | None, method: str, path: str, body: Any = None, *, denied: bool = False
    ) -> None:
        """It is refused: ``denied`` is for want of a right. Nothing has changed."""
        answer = self._walked.call(role, method, path, body)
        self.calls += 1
        allowed = (401, 403) if denied else range(400, 500)
        if not (answer.status in allowed or answer.status == 501):
            self.wrong.append(f"{role}: {method} {path} {body!r}: {answer}")
        elif not answer.body or not json.loads(answer.body).get("reason"):
            self.wrong.append(f"{role}: {method} {path}: no reason: {answer}")
        self._compare(f"{role}: {method} {path} {body!r}: {answer.status}")

    def harmless(self, role: str | None, method: str, path: str, body: Any = None) -> None:
        """Whatever the answer is, it is no failure of the broker, and nothing has changed."""
        answer = self._walked.call(role, method, path, body)
        self.calls += 1
        if answer.status >= 500 and answer.status != 501:
            self.wrong.append(f"{role}: {method} {path} {body!r}: {answer}")
        self._compare(f"{role}: {method} {path} {body!r}: {answer.status}")

    def _compare(self, what: str) -> None:
        after, before = self._walked.stored(), self._before
        if after != before:
            changed = [key for key in {*after, *before} if after.get(key) != before.get(key)]
            self.wrong.append(f"{what} changed {sorted(changed)}")
            self._before = after


def _slots(route: Route) -> list[str]:
    return [slot.partition(":")[0] for slot in re.findall(r"\{([^}]*)\}", route.path)]


def _path(route: Route, **names: str) -> str:
    """A path with a name in every slot; subscriptions are encoded twice, as clients do it."""
    parts = []
    for part in route.path.split("/"):
        slot = part[1:-1].partition(":")[0]
        name = {**OWN, **names}.get(slot, "1") if part.startswith("{") else part
        if slot == "subscription" and part.startswith("{"):
            name = quote(quote(name, safe=""), safe="")
        parts.append(name)
    return "/".join(parts)


def _body_of(route: Route) -> Any:
    if not route.method.startswith("P"):
        return None
    if route.path.endswith("/subscription/{subscription}"):
        return START
    return OF_SUBSCRIPTION.get(route.path.rpartition("/")[2])


# -- HTTP --------------------------------------------------------------------------------------


def test_every_slot_and_every_body_is_known(walked: Walked) -> None:
    unknown = {slot for route in walked.routes for slot in _slots(route)} - OWN.keys()
    assert unknown == set(), "say in OWN what a new slot may name"
    in_body = {f"{r.method} {r.path}" for r in walked.routes if isinstance(r.needs, InBody)}
    assert in_body - BODIES.keys() == set(), "say in BODIES what a new route must refuse"
    there = {f"{route.method} {route.path}" for route in walked.routes}
    assert BODIES.keys() - there == set(), "these routes are gone"


@pytest.mark.parametrize("whose", FOREIGN)
def test_nobody_touches_what_is_not_theirs(walked: Walked, whose: str) -> None:
    walk = Walk(walked)
    for route in walked.routes:
        if "tenant" not in _slots(route):
            continue
        path = _path(route, **FOREIGN[whose])
        for role in ROLES[:-1]:  # a super user may
            if route.operations in ("open", "login"):
                walk.harmless(role, route.method, path)
            else:
                walk.refused(role, route.method, path, _body_of(route), denied=True)
    assert not walk.wrong, "\n".join(walk.wrong)
    assert walk.calls > 1000


def test_nobody_moves_the_cursors_of_the_broker(walked: Walked) -> None:
    walk = Walk(walked)
    for route in walked.routes:
        if "subscription" not in _slots(route) or _names_a_list(route):
            continue
        # Without a name, the path of a namespace is that of another route.
        for name in BAD_NAMES if "{topic}" in route.path else filter(None, BAD_NAMES):
            path = _path(route, subscription=name)
            check = walk.harmless if _may_pass(route, name) else walk.refused
            for role in ROLES:
                check(role, route.method, path, _body_of(route))
    assert not walk.wrong, "\n".join(walk.wrong)
    assert walk.calls > 500


def _may_pass(route: Route, name: str) -> bool:
    """Whether a request may succeed, but for the rule that it changes nothing.

    Reads may. Where a name is nobody's, what would take something from it has nothing to take.
    """
    if route.method == "GET" or route.path.endswith("/analyzeBacklog") or name == "":
        return True
    of_topic = "{namespace}/{topic}" in route.path
    return name not in SYSTEM and (route.method == "DELETE" or not of_topic)


def _names_a_list(route: Route) -> bool:
    """Whether a name is only looked up in a list of a policy, to remove it from there."""
    ends = ("/permissions/{subscription}/{role}", "/{subscription}/dispatchRate")
    return route.method == "DELETE" and route.path.endswith(ends)


@pytest.mark.parametrize("name", ["a%0Ab", "%20", "a%2Fb", "%FF"])
def test_no_topic_has_a_name_that_is_none(walked: Walked, name: str) -> None:
    walk = Walk(walked)
    for route in walked.routes:
        if "topic" not in _slots(route):
            continue
        for role in ("reader", "root"):
            walk.refused(role, route.method, _path(route, topic=name), _body_of(route))
    assert not walk.wrong, "\n".join(walk.wrong)


def test_nobody_else_does_what_is_for_super_users(walked: Walked) -> None:
    walk = Walk(walked)
    for route in walked.routes:
        if route.operations == "super user":
            for role in ROLES[:-1]:
                walk.refused(role, route.method, _path(route), denied=True)
    assert not walk.wrong, "\n".join(walk.wrong)
    assert walk.calls > 300


def test_no_body_names_what_is_reserved_or_somebody_elses(walked: Walked) -> None:
    walk = Walk(walked)
    by_name = {f"{route.method} {route.path}": route for route in walked.routes}
    for key, attacks in BODIES.items():
        route = by_name[key]
        for attack in attacks:
            path = _path(route, namespace="new") if key.endswith("{namespace}") else _path(route)
            for role in ROLES if attack.as_root else ROLES[:-1]:
                walk.refused(role, route.method, path, attack.body)
    assert not walk.wrong, "\n".join(walk.wrong)


def test_a_query_touches_only_what_it_has_claimed(walked: Walked) -> None:
    """With a claim of its own, a query moves no other cursor, and on no other topic."""
    walk = Walk(walked)
    query = "/admin/v2/spark-queries/own"
    claim = {"client": "c", "subscription": "s2", "topics": [OURS]}
    assert walked.call("reader", "PUT", query, claim).status == 204
    for topic in (THEIRS, AUDIT_TOPIC, "a\nb", ""):
        for method, end in (("PUT", "subscriptions"), ("POST", "acknowledge")):
            walk.refused("reader", method, f"{query}/{end}", {"positions": {topic: AT}})
            none = {"positions": {"persistent://acme/web/none": AT}}
            walk.harmless("reader", method, f"{query}/{end}", none)
    for role in ("writer", "boss", "stranger", "worker", None):
        for method, end in (("PUT", "/subscriptions"), ("POST", "/acknowledge"), ("DELETE", "")):
            walk.refused(role, method, query + end, {"positions": {OURS: AT}})
    for name in BAD_NAMES:
        walk.harmless("reader", "PUT", query, {**claim, "subscription": name})
    made = walked.call("reader", "POST", f"{query}/acknowledge", {"positions": {OURS: AT}})
    assert made.json == {"missing": [OURS]}
    assert walked.call("reader", "DELETE", query, None).status == 204
    assert not walk.wrong, "\n".join(walk.wrong)


# -- the binary protocol -----------------------------------------------------------------------

_TOPIC = {"topic": (THEIRS, AUDIT_TOPIC)}
_NAMESPACE = {"namespace": ("other/web", "pulsar/system")}
COMMANDS: dict[str, dict[str, tuple[str, ...]]] = {
    "PARTITIONED_METADATA": _TOPIC,
    "LOOKUP": _TOPIC,
    "PRODUCER": _TOPIC
    | {
        "initial_subscription_name": tuple(n for n in BAD_NAMES if n),
        "producer_name": ("pulsar.repl.west", "pulsark.bulk.x"),
    },
    "SUBSCRIBE": _TOPIC | {"subscription": BAD_NAMES},
    "GET_SCHEMA": _TOPIC,
    "GET_OR_CREATE_SCHEMA": _TOPIC,
    "GET_TOPICS_OF_NAMESPACE": _NAMESPACE,
    "WATCH_TOPIC_LIST": _NAMESPACE,
    "WATCH_SCALABLE_TOPICS": _NAMESPACE,
    "SCALABLE_TOPIC_LOOKUP": _TOPIC,
    "SCALABLE_TOPIC_SUBSCRIBE": _TOPIC | {"subscription": BAD_NAMES},
    "ADD_PARTITION_TO_TXN": {},
    "ADD_SUBSCRIPTION_TO_TXN": {},
    "END_TXN_ON_PARTITION": _TOPIC,
    "END_TXN_ON_SUBSCRIPTION": {},
    "TC_CLIENT_CONNECT_REQUEST": {},
    "NEW_TXN": {},
    "END_TXN": {},
}
"""What a command may name, and what it must not get. Commands about transactions are refused."""

BY_NUMBER = {
    name
    for name, needs in ((pb.BaseCommand.Type.Name(k), n) for k, n in NEEDS.items())
    if isinstance(needs, Own)
}
"""Commands that name nothing but a producer, consumer or watch of the same connection."""


def test_every_command_is_known() -> None:
    names = {pb.BaseCommand.Type.Name(kind) for kind in HANDLERS}
    assert names - COMMANDS.keys() - BY_NUMBER == set(), "say what a new command must refuse"
    assert not COMMANDS.keys() & BY_NUMBER
    texts = {
        *("topic", "namespace", "subscription"),
        *("initial_subscription_name", "producer_name"),
    }
    for name in COMMANDS.keys() | BY_NUMBER:
        sample = sample_of(pb.BaseCommand.Type.Value(name))
        fields = {
            field.name
            for _, request in sample.ListFields()
            if hasattr(request, "DESCRIPTOR")
            for field in request.DESCRIPTOR.fields
            if field.message_type is None and field.name in texts
        }
        assert fields <= COMMANDS.get(name, {}).keys(), f"{name} names more than is said here"


def _attacks(name: str) -> Iterator[tuple[str, pb.BaseCommand]]:
    """The field that is an attack, and the command. All other names are the role's own."""
    kind = pb.BaseCommand.Type.Value(name)
    for field, values in COMMANDS[name].items():
        for given in values:
            command = sample_of(kind)
            request = getattr(command, Command.DESCRIPTOR.fields_by_number[kind].name)
            setattr(request, field, given)
            yield field, command
    if not COMMANDS[name]:
        yield "", sample_of(kind)


@pytest.mark.parametrize("role", [role for role in ROLES if role is not None])
def test_no_command_gets_at_what_is_reserved_or_somebody_elses(role: str) -> None:
    @scenario(rules=RULES)
    async def run(broker: Any) -> None:
        resources, topics = broker.broker.resources, broker.broker.topics
        await _fill(resources)
        loaded = {}
        for name in (OURS, THEIRS, AUDIT_TOPIC):
            loaded[name] = await topics.load(TopicName.parse(name), create=True)
            await loaded[name].compactor.run()
        before = _kept(broker, loaded)
        wrong = []
        for name in COMMANDS:
            for field, command in _attacks(name):
                if role == "root" and field in ("topic", "namespace", "producer_name"):
                    continue  # a super user may
                client = Client(broker, principal=Principal(role))
                client.send(command)
                if not await _is_refused(client):
                    wrong.append(f"{role}: {name} {field} {client.answers}: {command}")
                client.hang_up()
                after = _kept(broker, loaded)
                if after != before:
                    wrong.append(f"{role}: {name} {field} changed something: {command}")
                    before = after
        assert wrong == []

    run()


def _kept(broker: Any, loaded: dict[str, Any]) -> dict[str, Any]:
    nodes = broker._tree._nodes
    cursors = {
        f"{name} {each.name}": (each.cursor.reached, dict(each.cursor.properties))
        for name, topic in loaded.items()
        for each in topic.subscriptions.values()
    }
    watched = ("/admin", "/managed-ledgers", "/schemas", "/tables")
    return cursors | {path: n.value for path, n in nodes.items() if path.startswith(watched)}


async def _is_refused(client: Client) -> bool:
    """Whether the first answer, of whatever form, has an error."""
    answer = await client.take(*(set(pb.BaseCommand.Type.values()) - {Command.CONNECTED}))
    response = getattr(answer, Command.DESCRIPTOR.fields_by_number[answer.type].name)
    return any(
        response.HasField(field) for field in ("error", "error_code") if hasattr(response, field)
    )


@scenario(rules=RULES)
async def test_numbers_of_another_connection_mean_nothing(broker: Any) -> None:
    """Consumers, producers and watches are named by numbers of the connection itself."""
    await _fill(broker.broker.resources)
    owner = Client(broker, principal=Principal("boss"))
    await owner.produce(OURS, 3)
    assert await owner.subscribe(OURS) == 0
    topic = broker.broker.topics.get_loaded(TopicName.parse(OURS))
    subscription = topic.subscriptions["s"]
    before = subscription.cursor.reached
    for name in sorted(BY_NUMBER - {"AUTH_RESPONSE"}):
        kind = pb.BaseCommand.Type.Value(name)
        command = sample_of(kind)
        request = getattr(command, Command.DESCRIPTOR.fields_by_number[kind].name)
        for field in ("consumer_id", "producer_id"):
            if field in request.DESCRIPTOR.fields_by_name:
                setattr(request, field, 1)
        stranger = Client(broker, principal=Principal("stranger"))
        stranger.send(command)
        await stranger.deliveries()
        stranger.hang_up()
    assert subscription.cursor.reached == before
    assert topic.subscriptions == {"s": subscription}
    assert len(subscription.type.consumers) == len(topic.producers) == 1


# -- Flight ------------------------------------------------------------------------------------


def test_every_method_and_every_field_of_a_ticket_is_known() -> None:
    methods = {name for name in vars(EntryFlightServer) if not name.startswith("_")}
    assert methods == {"do_get", "get_flight_info", "stop"}
    assert EntryTicket._fields == ("topic", "topic_id", "first", "last", "compacted")
    # Only the topic names something; the rest is a range in it.


@pytest.mark.parametrize("role", ROLES)
def test_no_ticket_reads_what_is_somebody_elses(walked: Walked, role: str | None) -> None:
    rights = FlightRights(None, walked.api.broker.authorization)
    principal = None if role is None else Principal(role)
    before = walked.stored()
    named = (THEIRS, AUDIT_TOPIC, f"{THEIRS}-partition-0", "persistent://other/x/a\nb", "", " ")
    for topic in named:
        if role == "root" and topic.startswith(("persistent://other/web", "persistent://pulsar")):
            continue
        with pytest.raises(ClientError):
            walked.api.run(rights.check(principal, topic))
    assert walked.stored() == before
