"""Every command and every route, for everybody: who may, and who may not.

What each needs is in ``tests/security/matrix.tsv``, and who has that is said here, by hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from pulsark.errors import ServerError
from pulsark.metadata.resources import Tenant
from pulsark.security.facts import Rules
from pulsark.security.principal import Principal
from pulsark.wire import pulsar_pb2 as pb
from tests.support.admin_api import AdminApi, Answer
from tests.support.broker_clients import Client, Command, scenario
from tests.support.routes import SAMPLE, Route, routes_of
from tests.support.samples import TOPIC, sample_of
from tests.unit.security.test_matrix import matrix

RULES = Rules(frozenset({"root"}))
ROLES = ("root", "boss", "writer", "reader", "stranger", "rival", None)
"""A super user, an administrator of the tenant, two granted roles, somebody, an administrator of
another tenant, and nobody."""

LOGGED_IN = {"root", "boss", "writer", "reader", "stranger", "rival"}
ADMINS, GRANTED = {"root", "boss"}, {"root", "boss", "writer", "reader"}
WRITERS, READERS = {"root", "boss", "writer"}, {"root", "boss", "reader"}

MAY: dict[str, set[str]] = {
    # As in Pulsar 4: rates are no fence around a tenant against its own administrators.
    "namespace policy RATE WRITE": ADMINS,
    "topic policy RATE WRITE": ADMINS,
    "login": LOGGED_IN,
    "super user": {"root"},
    "tenant admin": ADMINS,
    "tenant LIST_TENANTS": {"root"},
    "tenant CREATE_TENANT": {"root"},
    "tenant UPDATE_TENANT": {"root"},
    "tenant DELETE_TENANT": {"root"},
    "namespace GET_TOPICS": GRANTED,
    "namespace GET_BUNDLE": GRANTED,
    "namespace CLEAR_BACKLOG of subscription": READERS,
    "namespace UNSUBSCRIBE of subscription": READERS,
    "topic LOOKUP": GRANTED,
    "topic GET_STATS": GRANTED,
    "topic GET_METADATA": GRANTED,
    "topic PRODUCE": WRITERS,
    "topic GET_SUBSCRIPTIONS": READERS,
    "topic GET_BACKLOG_SIZE": READERS,
    "topic PEEK_MESSAGES": READERS,
    "topic EXPIRE_MESSAGES": READERS,
    "body: topic PEEK_MESSAGES": READERS,
    "topic PRODUCE, topic SUBSCRIBE of subscription": ADMINS,
    **{
        f"topic {operation} of subscription": READERS
        for operation in (
            "CONSUME",
            "SUBSCRIBE",
            "UNSUBSCRIBE",
            "SKIP",
            "EXPIRE_MESSAGES",
            "PEEK_MESSAGES",
            "RESET_CURSOR",
            "GET_REPLICATED_SUBSCRIPTION_STATUS",
            "SET_REPLICATED_SUBSCRIPTION_STATUS",
        )
    },
}
"""Everything else is for the tenant's administrators and super users."""


def who_may(needs: str) -> set[str | None]:
    if needs in ("open", "none"):
        return {*LOGGED_IN, None}
    if needs == "body: topic CONSUME":  # of what is in no body there is nothing to ask
        return {*LOGGED_IN}
    return {*MAY.get(needs, ADMINS)}


POLICIES = {
    "auth_policies": {"namespace_auth": {"writer": ["produce"], "reader": ["consume"]}},
}


async def fill(resources: Any) -> None:
    await resources.tenants.create("acme", Tenant(("boss",), ("standalone",)))
    await resources.tenants.create("other", Tenant(("rival",)))
    await resources.namespaces.create("acme/web", policies=POLICIES)


# -- HTTP --------------------------------------------------------------------------------------

BODIES = {
    "grantPermissionsOnTopics": [{"topic": TOPIC, "role": "r", "actions": []}],
    "revokePermissionsOnTopics": [{"topic": TOPIC, "role": "r", "actions": []}],
    "spark-plans": {"topics": {TOPIC: []}},
}
NAMES = {
    **SAMPLE,
    "bundle": "0x00000000_0x40000000",
    "kind": "LARGEST",
    "cluster": "standalone",
    "rest": "any",
    "content": "1",
}
ONLY_BROKERS = "Only the brokers of a cluster ask this of each other"
"""No right is enough for that: ``tests/unit/admin`` has it."""
REFUSALS = (
    "Unauthorized to validate",
    "This operation requires super-user access",
    "Don't have permission to administrate resources on this tenant",
    "Authentication required",
)


def path_of(route: Route) -> str:
    """A path with a name in every slot."""
    parts = []
    for part in route.path.split("/"):
        slot = part[1:-1].partition(":")[0]
        parts.append(NAMES.get(slot, "1") if part.startswith("{") else part)
    return "/".join(parts)


def is_denied(answer: Answer) -> bool:
    if answer.status not in (401, 403) or answer.reason == ONLY_BROKERS:
        return False
    assert answer.reason.startswith(REFUSALS), answer.reason
    return True


def harmless_first(routes: Iterable[Route]) -> list[Route]:
    """Those that delete what all of them are about come last."""
    return sorted(routes, key=lambda route: (route.method == "DELETE", -route.path.count("/")))


@pytest.fixture
def api() -> Iterator[AdminApi]:
    found = AdminApi(rules=RULES)
    found.run(fill(found.broker.resources))
    yield found
    found.close()


@pytest.mark.feature("F80", "F81")
@pytest.mark.parametrize("role", ROLES)
def test_every_route(api: AdminApi, role: str | None) -> None:
    expected = matrix("http")
    api.principal = None if role is None else Principal(role)
    wrong = []
    for route in harmless_first(routes_of(api.app)):
        needs = expected[f"{route.method} {route.path}"]
        body = BODIES.get(route.path.rpartition("/")[2])
        answer = api.call(route.method, path_of(route), body)
        if is_denied(answer) == (role in who_may(needs)):
            wrong.append(f"{route.method} {route.path} needs {needs}: {answer}")
    assert wrong == []


def test_a_missing_tenant_is_not_found_but_for_super_users(api: AdminApi) -> None:
    for role, what in (("stranger", "Tenant"), ("root", "Namespace none/web")):
        api.principal = Principal(role)
        answer = api.get("/admin/v2/persistent/none/web")
        assert (answer.status, answer.reason) == (404, f"{what} does not exist")


def test_nobody_learns_from_a_denial_what_there_is(api: AdminApi) -> None:
    api.principal = Principal("boss")
    assert api.put("/admin/v2/persistent/acme/web/there").status == 204
    api.principal = Principal("stranger")
    there, missing = (
        api.get(f"/admin/v2/persistent/acme/web/{name}/stats") for name in ("there", "gone")
    )
    assert (there.status, there.reason.replace("there", "gone")) == (401, missing.reason)


def test_a_body_is_not_read_before_the_right_is_there(api: AdminApi) -> None:
    api.principal = Principal("stranger")
    path = "/admin/v2/namespaces/acme/web/retention"
    assert api.call("POST", path, raw=b"no json").status == 403


def test_the_status_and_the_words_are_pulsars(api: AdminApi) -> None:
    api.principal = Principal("stranger")
    topic = "/admin/v2/persistent/acme/web/clicks"
    for method, path, status, reason in (
        (
            "GET",
            f"{topic}/stats",
            401,
            f"TopicOperation for operation [GET_STATS] on topic [{TOPIC}]",
        ),
        (
            "PUT",
            topic,
            403,
            "NamespaceOperation for operation [CREATE_TOPIC] on namespace [acme/web]",
        ),
        (
            "GET",
            "/admin/v2/namespaces/acme/web/retention",
            403,
            "NamespacePolicyOperation for operation [READ] on namespace [acme/web] "
            "on policy [RETENTION]",
        ),
        (
            "DELETE",
            f"{topic}/retention",
            403,
            f"TopicPolicyOperation for operation [WRITE] on topic [{TOPIC}] on policy [RETENTION]",
        ),
        (
            "GET",
            "/admin/v2/tenants/acme",
            401,
            "TenantOperation for operation [GET_TENANT] on tenant [acme]",
        ),
    ):
        answer = api.call(method, path)
        assert (answer.status, answer.reason) == (status, f"Unauthorized to validate{reason}")


def test_a_query_belongs_to_the_role_that_claimed_it(api: AdminApi) -> None:
    query = "/admin/v2/spark-queries/q1"
    claim = {"client": "here", "subscription": "s", "topics": [TOPIC]}
    api.principal = Principal("writer")
    assert api.put(query, claim).status == 401
    api.principal = Principal("reader")
    assert api.put(query, claim).status == 204
    assert [each["query"] for each in api.get("/admin/v2/spark-queries").json] == ["q1"]
    api.principal = Principal("boss")
    assert api.get("/admin/v2/spark-queries").json == []
    assert api.put(query, claim).status == 409
    for method, path in (("POST", query), ("DELETE", query), ("PUT", f"{query}/subscriptions")):
        assert api.call(method, path, {}).status == 404
    api.principal = Principal("root")
    assert len(api.get("/admin/v2/spark-queries").json) == 1
    api.principal = Principal("reader")
    assert api.delete(query).status == 204


# -- the binary protocol -----------------------------------------------------------------------


@pytest.mark.feature("F81")
@pytest.mark.parametrize("role", [role for role in ROLES if role is not None])
def test_every_command(role: str) -> None:
    @scenario(rules=RULES)
    async def run(broker) -> None:
        await fill(broker.broker.resources)
        wrong = []
        for name, needs in matrix("binary").items():
            kind = pb.BaseCommand.Type.Value(name)
            if needs == "none" or needs.startswith("own "):
                continue
            client = Client(broker, principal=Principal(role))
            client.send(sample_of(kind))
            denied = await is_refused(client)
            if denied == (role in who_may(needs)):
                wrong.append(f"{name} needs {needs}: denied is {denied}")
            client.hang_up()
        assert wrong == []

    run()


async def is_refused(client: Client) -> bool:
    answer = await client.take(*ANSWERS)
    response = getattr(answer, Command.DESCRIPTOR.fields_by_number[answer.type].name)
    codes = [getattr(response, name, None) for name in ("error", "error_code")]
    return ServerError.AuthorizationError in codes


ANSWERS = (
    Command.ERROR,
    Command.SUCCESS,
    Command.LOOKUP_RESPONSE,
    Command.SCALABLE_TOPIC_UPDATE,
    Command.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE,
    Command.WATCH_SCALABLE_TOPICS_UPDATE,
    Command.PARTITIONED_METADATA_RESPONSE,
    Command.PRODUCER_SUCCESS,
    Command.GET_TOPICS_OF_NAMESPACE_RESPONSE,
    Command.WATCH_TOPIC_LIST_SUCCESS,
    Command.GET_SCHEMA_RESPONSE,
    Command.GET_OR_CREATE_SCHEMA_RESPONSE,
)
