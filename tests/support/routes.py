"""The routes of the admin API, and what each says that it needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from pulsark.admin.http.guard import InBody, Need, Needed
from pulsark.admin.pulsar.policy_table import NAMESPACE_POLICIES, TOPIC_POLICIES
from pulsark.security.decisions import Target
from pulsark.security.operations import GeneralOperation as G

SAMPLE = {
    "domain": "persistent",
    "tenant": "acme",
    "namespace": "web",
    "topic": "clicks",
    "subscription": "s",
}
_WORDS = {
    G.OPEN: "open",
    G.LOGIN: "login",
    G.SUPER_USER: "super user",
    G.ADMINISTER_TENANT: "tenant admin",
}
_POLICIES = {"{policy:nspolicy}": NAMESPACE_POLICIES, "{policy:topicpolicy}": TOPIC_POLICIES}


class Route(NamedTuple):
    """A method and a path; where the path stands for one policy of many, it names that one."""

    method: str
    path: str
    needs: Need | None
    policy: str = ""
    place: str = "nothing was said"
    """Which broker serves it, as in ``tests/unit/admin/places.tsv``."""

    @property
    def operations(self) -> str:
        """What it needs, as in ``tests/security/matrix.tsv``."""
        if self.needs is None:
            return "nothing was said"
        if isinstance(self.needs, InBody):
            return f"body: {_word(self.needs.operation)}"
        asked = self.needs.asked(self.method, {**SAMPLE, "policy": self.policy})
        return in_words(asked)


def routes_of(app: Any) -> Iterator[Route]:
    """All of an application."""
    for route in _flat(app.routes):
        given = getattr(route, "dependencies", ())
        needs = [each.dependency for each in given]
        placed = [each.place.word for each in given if isinstance(each, Needed)]
        declared = next((need for need in needs if isinstance(need, Need)), None)
        for method in sorted(route.methods - {"HEAD"}):
            for path, policy in _each_policy(route.path):
                yield Route(method, path, declared, policy, *placed[:1])


def in_words(asked: Iterable[tuple[Any, Target]]) -> str:
    """Operations as the matrix has them."""
    return ", ".join(
        _word(operation) + ("" if target.subscription is None else " of subscription")
        for operation, target in asked
    )


def _flat(routes: Iterable[Any]) -> Iterator[Any]:
    for route in routes:
        inner = getattr(route, "original_router", None)
        if inner is None:
            yield route
        else:
            yield from _flat(inner.routes)


def _each_policy(path: str) -> Iterator[tuple[str, str]]:
    for slot, policies in _POLICIES.items():
        if slot in path:
            yield from ((path.replace(slot, name), name) for name in policies)
            return
    yield path, ""


def _word(operation: Any) -> str:
    return _WORDS.get(operation) or str(operation)
