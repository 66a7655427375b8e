"""What roles may do on namespaces, topics and subscriptions: shown, granted and revoked."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import Response

from pulsark.admin.http.errors import fail
from pulsark.admin.http.guard import Guarded, Rights, RightsOf, in_body, namespace, tenant_admin
from pulsark.admin.http.paths import TOPICS
from pulsark.admin.http.places import ANYWHERE, OWNER_IF_VOLATILE, OWNER_OF_BASE
from pulsark.admin.http.requests import (
    AnyTopicOf,
    BrokerOf,
    NamespaceOf,
    done,
    json_body,
    strings,
    unquoted,
    value,
)
from pulsark.admin.pulsar.partitioned import is_there, staying
from pulsark.admin.pulsar.policies import Edit, existing_namespace, of_namespace
from pulsark.dispatch.broker import Broker
from pulsark.errors import ClientError, ServerError, near_miss
from pulsark.limits import GRANTS_PER_NAMESPACE_MAX
from pulsark.security import grants
from pulsark.security.authorization import StoredGrants
from pulsark.security.decisions import Target
from pulsark.security.facts import Rules
from pulsark.security.limits import ROLE_CHARS_MAX
from pulsark.security.operations import GeneralOperation as G
from pulsark.security.operations import NamespaceOperation, TopicOperation
from pulsark.security.operations import NamespaceOperation as N
from pulsark.security.principal import Principal
from pulsark.storage.cursor.owners import check_new_name
from pulsark.wire.topic_name import TopicName

router = Guarded(at=ANYWHERE, tags=["permissions"])

_NAMESPACES = "/admin/v2/namespaces"
_OF_NAMESPACE = _NAMESPACES + "/{tenant}/{namespace}/permissions"
_OF_TOPIC = TOPICS + "/{topic}/permissions"


@router.get(_OF_NAMESPACE, needs=namespace(N.GET_PERMISSION))
async def get_permissions(name: NamespaceOf, broker: BrokerOf) -> Response:
    """What each role may do in a namespace."""
    namespace = await existing_namespace(broker, name)
    return value(grants.granted(namespace.policies, grants.NAMESPACE))


@router.get(_OF_NAMESPACE + "/subscription", needs=namespace(N.GET_PERMISSION))
async def get_of_subscriptions(name: NamespaceOf, broker: BrokerOf) -> Response:
    """The roles that may use a subscription, by its name."""
    namespace = await existing_namespace(broker, name)
    return value(grants.granted(namespace.policies, grants.SUBSCRIPTIONS))


@router.post(_OF_NAMESPACE + "/{role}", needs=namespace(N.GRANT_PERMISSION))
async def grant(name: NamespaceOf, role: str, request: Request, broker: BrokerOf) -> Response:
    """Say what a role may do in a namespace."""
    who, actions = _role(role), _actions(await json_body(request))
    await _change(broker, name, lambda p: grants.grant(p, who, actions))
    return done()


@router.delete(_OF_NAMESPACE + "/{role}", needs=namespace(N.REVOKE_PERMISSION))
async def revoke(name: NamespaceOf, role: str, broker: BrokerOf) -> Response:
    """Take what a role may do in a namespace."""
    who = _role(role)
    await _change(broker, name, lambda p: grants.revoke(p, who))
    return done()


@router.post(_OF_NAMESPACE + "/subscription/{subscription}", needs=namespace(N.GRANT_PERMISSION))
async def grant_on_subscription(
    name: NamespaceOf, subscription: str, request: Request, broker: BrokerOf
) -> Response:
    """Say which roles may use the subscriptions of a name."""
    which = unquoted(subscription)
    check_new_name(which)
    roles = [_checked(role) for role in strings(await json_body(request), "The body")]
    await _change(broker, name, lambda p: grants.grant_on_subscription(p, which, roles))
    return done()


@router.delete(_OF_NAMESPACE + "/{subscription}/{role}", needs=namespace(N.REVOKE_PERMISSION))
async def revoke_on_subscription(
    name: NamespaceOf, subscription: str, role: str, broker: BrokerOf
) -> Response:
    """Take a role off the list of those that may use the subscriptions of this name."""
    which, who = unquoted(subscription), _role(role)
    await _change(broker, name, lambda p: grants.revoke_on_subscription(p, which, who))
    return done()


@router.post(_NAMESPACES + "/grantPermissionsOnTopics", needs=in_body(G.ADMINISTER_TENANT))
async def grant_on_topics(request: Request, broker: BrokerOf, rights: RightsOf) -> Response:
    """Say what roles may do on topics, many at once."""
    for topic, role, given in await _listed(request, broker, rights):
        await _grant_on_topic(broker, topic, role, _actions(given))
    return done()


@router.post(_NAMESPACES + "/revokePermissionsOnTopics", needs=in_body(G.ADMINISTER_TENANT))
async def revoke_on_topics(request: Request, broker: BrokerOf, rights: RightsOf) -> Response:
    """Take what roles may do on topics, many at once."""
    for topic, role, _ in await _listed(request, broker, rights):
        await _revoke_on_topic(broker, topic, role)
    return done()


@router.get(_OF_TOPIC, needs=tenant_admin, at=OWNER_IF_VOLATILE)
async def get_of_topic(topic: AnyTopicOf, broker: BrokerOf) -> Response:
    """What each role may do on a topic: that of its namespace, and its own."""
    await _check_there(broker, topic)
    namespace = await existing_namespace(broker, topic.namespace_name)
    return value(grants.granted_on_topic(namespace.policies, str(topic.base)))


@router.post(_OF_TOPIC + "/{role}", needs=tenant_admin, at=OWNER_OF_BASE)
async def grant_on_topic(
    topic: AnyTopicOf, role: str, request: Request, broker: BrokerOf
) -> Response:
    """Say what a role may do on a topic and its partitions."""
    await _grant_on_topic(broker, topic, _role(role), _actions(await json_body(request)))
    return done()


@router.delete(_OF_TOPIC + "/{role}", needs=tenant_admin, at=OWNER_OF_BASE)
async def revoke_on_topic(topic: AnyTopicOf, role: str, broker: BrokerOf) -> Response:
    """Take what a role may do on a topic; 412 if it has nothing there."""
    await _check_there(broker, topic)
    if not await _revoke_on_topic(broker, topic, _role(role)):
        raise fail(412, "Permissions are not set at the topic level")
    return done()


@router.get(_OF_TOPIC + "/{role}/{operation}", needs=tenant_admin, at=OWNER_IF_VOLATILE)
async def may(
    topic: AnyTopicOf, role: str, operation: str, request: Request, broker: BrokerOf
) -> Response:
    """``{"granted", "rule", "needs"}``: whether a role may do something, and why or why not.

    Pulsark's own. ``?subscription=`` names one of the topic, or the namespace's of that name.
    Without authorization it is answered as if it were on.
    """
    wanted = _operation(operation)
    subscription = request.query_params.get("subscription")
    target = Target.of_topic(topic, subscription)
    if isinstance(wanted, NamespaceOperation):
        target = Target.of_namespace(topic.namespace_name, subscription)
    provider = broker.authorization or StoredGrants(
        Rules.of(broker.settings), broker.metadata, broker.resources
    )
    granted, rule = await provider.decision(Principal(_role(role)), wanted, target)
    return value({"granted": granted, "rule": rule.value, "needs": wanted.right.label})


def _operation(segment: str) -> TopicOperation | NamespaceOperation:
    name = unquoted(segment).upper()
    kinds: tuple[type[TopicOperation | NamespaceOperation], ...]
    kinds = (TopicOperation, NamespaceOperation)
    for kind in kinds:
        if name in kind.__members__:
            return kind[name]
    known = [each for kind in kinds for each in kind.__members__]
    near = near_miss(name, known)
    raise fail(412, f"{name[:100]} is not an operation{near}; there are {', '.join(known)}")


async def _check_there(broker: Broker, topic: TopicName) -> None:
    if not await is_there(broker, topic):
        raise ClientError(ServerError.TopicNotFound, f"Topic {topic} does not exist")


async def _grant_on_topic(broker: Broker, topic: TopicName, role: str, actions: list[str]) -> None:
    key = str(topic.base)
    async with staying(broker, topic):
        await _change(
            broker, topic.namespace_name, lambda p: grants.grant_on_topic(p, key, role, actions)
        )


async def _revoke_on_topic(broker: Broker, topic: TopicName, role: str) -> bool:
    had = False

    def edit(policies: dict[str, Any]) -> None:
        nonlocal had
        had = grants.revoke_on_topic(policies, str(topic.base), role)

    await _change(broker, topic.namespace_name, edit)
    return had


async def _change(broker: Broker, namespace: str, edit: Edit) -> None:
    await existing_namespace(broker, namespace)

    def bounded(policies: dict[str, Any]) -> None:
        edit(policies)
        if grants.count(policies) > GRANTS_PER_NAMESPACE_MAX:
            raise fail(412, f"A namespace has at most {GRANTS_PER_NAMESPACE_MAX} grants")

    await of_namespace(broker, namespace)(bounded)


async def _listed(
    request: Request, broker: Broker, rights: Rights
) -> list[tuple[TopicName, str, Any]]:
    """Topic, role and actions of each item in the body; 404 if a topic is missing."""
    found = await json_body(request)
    if not isinstance(found, list):
        raise fail(400, "The body is a list of objects with topic, role and actions")
    listed = []
    for item in found:
        if not isinstance(item, dict) or not isinstance(item.get("topic"), str):
            raise fail(400, "Each item of the body has a topic, a role and actions")
        topic = TopicName.parse(item["topic"])
        await rights.check_topic(G.ADMINISTER_TENANT, topic)
        await _check_there(broker, topic)
        listed.append((topic, _checked(item.get("role")), item.get("actions")))
    return listed


def _role(segment: str) -> str:
    return _checked(unquoted(segment))


def _checked(role: Any) -> str:
    if not isinstance(role, str) or not 0 < len(role) <= ROLE_CHARS_MAX:
        raise fail(412, f"A role is a text of 1 to {ROLE_CHARS_MAX} characters")
    return role


def _actions(given: Any) -> list[str]:
    actions = strings(given, "The actions")
    unknown = sorted(set(actions) - set(grants.ACTIONS))
    if unknown:
        raise fail(400, f"An action is one of {', '.join(grants.ACTIONS)}")
    return actions
