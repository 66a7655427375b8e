"""The answers to denied requests: in Pulsar's words, and without roles, which are confidential.

The binary protocol has one code for all denials. Over HTTP, the status depends on the operation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pulsark.security.decisions import Rule
from pulsark.security.operations import GeneralOperation, PolicyOperation, TargetKind

if TYPE_CHECKING:
    from pulsark.security.decisions import Target
    from pulsark.security.operations import Operation
    from pulsark.security.principal import Principal


class Refusal(NamedTuple):
    """A status of HTTP and its reason."""

    status: int
    reason: str


NO_LOGIN = Refusal(401, "Authentication required")


def refusal(
    principal: Principal | None, operation: Operation, target: Target, rule: Rule
) -> Refusal:
    """The answer to a request that was denied."""
    if principal is None:
        return NO_LOGIN
    if rule is Rule.NO_TENANT:
        return Refusal(404, "Tenant does not exist")
    if rule is Rule.PROXY:
        return Refusal(
            401,
            "Invalid combination of roles: a proxy must name the original role, "
            "and no other client may",
        )
    return Refusal(operation.kind.status, _reason(operation, target))


def _reason(operation: Operation, target: Target) -> str:
    if operation is GeneralOperation.SUPER_USER:
        return "This operation requires super-user access"
    if operation is GeneralOperation.ADMINISTER_TENANT:
        return "Don't have permission to administrate resources on this tenant"
    what, name = {
        TargetKind.TENANT: ("Tenant", f"tenant [{target.tenant}]"),
        TargetKind.NAMESPACE: ("Namespace", f"namespace [{target.namespace}]"),
        TargetKind.NAMESPACE_POLICY: ("NamespacePolicy", f"namespace [{target.namespace}]"),
        TargetKind.TOPIC: ("Topic", f"topic [{target.topic}]"),
        TargetKind.TOPIC_POLICY: ("TopicPolicy", f"topic [{target.topic}]"),
    }.get(operation.kind, ("", ""))
    text = f"Unauthorized to validate{what}Operation for operation [{operation.name}] on {name}"
    policy = operation.policy if isinstance(operation, PolicyOperation) else ""
    return f"{text} on policy [{policy}]" if policy else text
