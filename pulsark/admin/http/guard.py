"""What each route needs, and the one place that asks for it.

Every route says it with ``needs=``, and with ``at=`` which broker serves it (``places``). Rights
are asked for before the body is read and before anything is looked up, so that no answer tells what
there is. Where the body names what a request is about, the route needs ``in_body`` and asks for
each name itself, with ``RightsOf``.

Without authorization nothing is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Request, params

from pulsark.admin.http.broker_calls import is_part
from pulsark.admin.http.errors import fail
from pulsark.admin.http.places import ANYWHERE, Place
from pulsark.admin.http.requests import (
    name_part,
    namespace_name,
    subscription_name,
    topic_name,
    unquoted,
)
from pulsark.dispatch.broker import Broker
from pulsark.security.authorization import AuthorizationProvider
from pulsark.security.decisions import Decision, Rule, Target, owner_of
from pulsark.security.operations import (
    GeneralOperation,
    NamespaceOperation,
    Operation,
    PolicyOperation,
    TargetKind,
    TenantOperation,
    TopicOperation,
)
from pulsark.security.principal import Principal
from pulsark.security.refusals import refusal
from pulsark.wire.topic_name import PERSISTENT, TopicName

Path = Mapping[str, str]
Asked = tuple[Operation, Target]
READ, WRITE = False, True
NOTE = "note"
"""Where a request's state has who wants to hear of decisions."""
ALLOWED = Decision(True, Rule.OPEN)

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


class Rights:
    """What the client of one request may do."""

    def __init__(
        self,
        provider: AuthorizationProvider | None,
        principal: Principal | None,
        note: Callable[[Operation, Target, Decision], None] | None = None,
    ) -> None:
        """``note`` hears of each decision, where there is an audit."""
        self._provider = provider
        self._principal = principal
        self._note = note

    @property
    def owner(self) -> str | None:
        """The role that owns what this client makes; ``None`` without authorization."""
        if self._provider is None or self._principal is None:
            return None
        return owner_of(self._principal)

    async def check(self, operation: Operation, target: Target) -> None:
        """401, 403 or 404 unless it may do this."""
        decision = await self._decision(operation, target)
        if self._note is not None:
            self._note(operation, target, decision)
        if not decision.granted:
            raise fail(*refusal(self._principal, operation, target, decision.rule))

    async def check_topics(
        self, operation: Operation, topics: Iterable[str], subscription: str | None = None
    ) -> None:
        """The same for many."""
        if self._provider is not None or self._note is not None:
            for topic in topics:
                await self.check_topic(operation, TopicName.parse(topic), subscription)

    async def owns(self, owner: str | None) -> bool:
        """Whether it made something, or is a super user."""
        if self._provider is None or (owner is not None and owner == self.owner):
            return True
        return (await self._decision(GeneralOperation.SUPER_USER, Target())).granted

    async def _decision(self, operation: Operation, target: Target) -> Decision:
        if self._provider is None:
            return ALLOWED
        decided = self._provider.decided(self._principal, operation, target)
        if decided is None:
            return await self._provider.decision(self._principal, operation, target)
        return decided

    async def check_topic(
        self, operation: Operation, topic: TopicName, subscription: str | None = None
    ) -> None:
        """The same for a topic, or a subscription of it."""
        await self.check(operation, Target.of_topic(topic, subscription))


async def _rights(request: Request) -> Rights:
    broker: Broker = request.app.state.broker
    state = request.state
    if is_part(request):
        return Rights(None, None)  # the broker whose part this is has asked
    principal, note = getattr(state, "principal", None), getattr(state, NOTE, None)
    return Rights(broker.authorization, principal, note)


RightsOf = Annotated[Rights, Depends(_rights)]


class Need:
    """What a route needs: a dependency that runs before all others."""

    def __init__(self, asked: Callable[[str, Path], list[Asked]]) -> None:
        """``asked``: from method and path to operations and what they are on."""
        self.asked = asked

    async def __call__(self, request: Request, rights: RightsOf) -> None:
        """Ask for it."""
        for operation, target in self.asked(request.method, request.path_params):
            await rights.check(operation, target)


class InBody(Need):
    """The route itself asks for each name in the body; each client has to log in."""

    def __init__(self, operation: Operation) -> None:
        super().__init__(lambda method, path: [(GeneralOperation.LOGIN, Target())])
        self.operation = operation


@dataclass(frozen=True)
class Needed(params.Depends):
    """What a route needs, and where it is served."""

    place: Place = ANYWHERE


class Guarded(APIRouter):
    """A router whose routes all say what they need, and which broker serves them."""

    def __init__(self, *, at: Place | None = None, **options: Any) -> None:
        """``at`` is where routes are served that do not say it themselves."""
        super().__init__(**options)
        self._at = at

    def get(  # type: ignore[override]
        self, path: str, *, needs: Need, at: Place | None = None, **options: Any
    ) -> Callable[[Endpoint], Endpoint]:
        """A GET route, which also serves HEAD."""
        return super().get(path, dependencies=self._asked(path, needs, at), **options)

    def put(  # type: ignore[override]
        self, path: str, *, needs: Need, at: Place | None = None, **options: Any
    ) -> Callable[[Endpoint], Endpoint]:
        """A PUT route."""
        return super().put(path, dependencies=self._asked(path, needs, at), **options)

    def post(  # type: ignore[override]
        self, path: str, *, needs: Need, at: Place | None = None, **options: Any
    ) -> Callable[[Endpoint], Endpoint]:
        """A POST route."""
        return super().post(path, dependencies=self._asked(path, needs, at), **options)

    def delete(  # type: ignore[override]
        self, path: str, *, needs: Need, at: Place | None = None, **options: Any
    ) -> Callable[[Endpoint], Endpoint]:
        """A DELETE route."""
        return super().delete(path, dependencies=self._asked(path, needs, at), **options)

    def answer(
        self,
        path: str,
        endpoint: Callable[..., Any],
        *,
        needs: Need,
        methods: list[str],
        at: Place | None = None,
    ) -> None:
        """A route without a function of its own."""
        asked = self._asked(path, needs, at)
        self.add_api_route(path, endpoint, methods=methods, dependencies=asked)

    def _asked(self, path: str, needs: Need, at: Place | None) -> list[Any]:
        """Rights first: where something is served is told to nobody who may not know it."""
        place = at or self._at
        if place is None:
            raise TypeError(f"{path} does not say at= which broker serves it")
        return [Needed(needs, place=place), *([Depends(place)] if place.asks else ())]


# -- what routes need --------------------------------------------------------------------------


def _general(operation: GeneralOperation) -> Need:
    return Need(lambda method, path: [(operation, Target())])


open_to_all = _general(GeneralOperation.OPEN)
login = _general(GeneralOperation.LOGIN)
superuser = _general(GeneralOperation.SUPER_USER)
tenant_admin = Need(lambda method, path: [(GeneralOperation.ADMINISTER_TENANT, of_path(path))])
in_body = InBody


def tenant(operation: TenantOperation) -> Need:
    """An operation on the tenant in the path."""
    return Need(
        lambda method, path: (
            [(operation, Target(name_part("tenant", path["tenant"])))]
            if "tenant" in path
            else [(operation, Target())]
        )
    )


def namespace(operation: NamespaceOperation, *, of_subscription: bool = False) -> Need:
    """An operation on the namespace in the path, or its subscriptions of the name in the path."""

    def asked(method: str, path: Path) -> list[Asked]:
        name = unquoted(path["subscription"]) if of_subscription else None
        return [(operation, Target.of_namespace(_namespace(path), name))]

    return Need(asked)


def topic(operation: TopicOperation, *, of_subscription: bool = False) -> Need:
    """An operation on the topic in the path, or on its subscription in the path."""

    def asked(method: str, path: Path) -> list[Asked]:
        name = subscription_name(path["subscription"]) if of_subscription else None
        return [(operation, Target.of_topic(_topic(path), name))]

    return Need(asked)


def namespace_policy(policy: str, writes: bool) -> Need:
    """To read or write a policy of the namespace in the path."""
    operation = PolicyOperation(policy, writes)
    return Need(lambda method, path: [(operation, Target.of_namespace(_namespace(path)))])


def topic_policy(policy: str, writes: bool) -> Need:
    """To read or write a policy of the topic in the path."""
    operation = PolicyOperation(policy, writes, TargetKind.TOPIC_POLICY)
    return Need(lambda method, path: [(operation, Target.of_topic(_topic(path)))])


def both(first: Need, second: Need) -> Need:
    """Two things."""
    return Need(lambda method, path: first.asked(method, path) + second.asked(method, path))


def of_path(path: Path) -> Target:
    """The topic, or else the namespace, that a path names."""
    if "topic" in path:
        return Target.of_topic(_topic(path))
    return Target.of_namespace(_namespace(path))


def _namespace(path: Path) -> str:
    return namespace_name(path["tenant"], path["namespace"])


def _topic(path: Path) -> TopicName:
    domain = path.get("domain", PERSISTENT)
    return topic_name(domain, path["tenant"], path["namespace"], path["topic"])
