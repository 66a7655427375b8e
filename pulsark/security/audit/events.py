"""Events as they are written: plain JSON, with the names and numbers of OCSF where they fit.

What has no value is left out. All texts come from clients, so all are cut to a length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pulsark.security.audit.effects import CHANGED
from pulsark.security.audit.limits import AUDIT_TEXT_CHARS_MAX
from pulsark.security.decisions import Target
from pulsark.security.operations import PolicyOperation, TargetKind, TopicOperation
from pulsark.security.principal import Origin
from pulsark.wire.topic_name import TopicName

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pulsark.security.decisions import Decision
    from pulsark.security.operations import Operation
    from pulsark.security.peer import TlsPeer
    from pulsark.security.principal import Principal

Event = dict[str, Any]

AUTHENTICATION, LIFECYCLE, API = 3002, 6002, 6003
"""Classes of OCSF."""
CREATE, READ, UPDATE, DELETE, OTHER = 1, 2, 3, 4, 99
"""Activities of the class API; of another class only OTHER, and those below."""
LOGON = 1
START, STOP = 3, 4
SUCCESS, FAILURE = 1, 2
INFORMATIONAL, MEDIUM = 1, 3
"""Severities."""

PRODUCE, CONSUME = "produce", "consume"

_OF_METHOD = {"GET": READ, "PUT": CREATE, "POST": UPDATE, "DELETE": DELETE}


class Call(NamedTuple):
    """What was called, and how that ended."""

    operation: str
    """A command of the binary protocol, or a method and the template of a route."""
    request_id: str = ""
    method: str = ""
    route: str = ""
    status: int = 0
    duration_ms: int = 0
    parameters: Mapping[str, str] = {}
    """What the path names beside tenant, namespace and topic."""
    before: str = ""
    """What was there before, of policies, permissions and tenants: only what is another now."""
    after: str = ""
    """What is there now; or what was sent, where it is not known what that changed."""


class Judged(NamedTuple):
    """What a role wanted to do, and whether it was allowed."""

    operation: Operation
    target: Target
    decision: Decision


def call_event(
    origin: Origin,
    principal: Principal | None,
    call: Call,
    judged: Judged | None,
    detail: str = "",
    target: Target | None = None,
) -> Event:
    """A change, or the denial of anything; of ``target``, unless it is that of ``judged``."""
    if target is None and judged is not None:
        target = judged.target
    activity = _OF_METHOD.get(call.method, OTHER)
    if activity == READ and CHANGED in call.parameters:
        activity = OTHER
    denied = judged is not None and not judged.decision.granted
    failed = denied or call.status >= 400
    return _event(
        API,
        activity,
        MEDIUM if denied else INFORMATIONAL,
        FAILURE if failed else SUCCESS,
        origin,
        call.operation,
        detail=detail or ("denied" if denied else ""),
        actor=_actor(principal),
        request_id=_text(call.request_id),
        resource=None if target is None else _resource(target),
        authz=None if judged is None else _authz(judged),
        http=_http(call),
        parameters={_cut(k): _cut(v) for k, v in call.parameters.items()} or None,
        before=call.before or None,
        after=call.after or None,
        duration_ms=call.duration_ms if call.method else None,
    )


def login_event(
    origin: Origin,
    operation: str,
    detail: str,
    *,
    principal: Principal | None = None,
    method: str = "",
    token_id: str = "",
) -> Event:
    """A login that failed, or what else there is to say of one; ``detail`` is why."""
    actor = _actor(principal) or {}
    shown = {"method": _text(method), "token_id": _text(token_id)}
    actor |= {key: value for key, value in shown.items() if value is not None}
    activity = LOGON if operation == "login" else OTHER
    return _event(
        AUTHENTICATION, activity, MEDIUM, FAILURE, origin, operation, detail=detail, actor=actor
    )


def access_event(origin: Origin, principal: Principal | None, access: str, target: Target) -> Event:
    """The first time today that a role reads or writes data."""
    return _event(
        API,
        READ if access == CONSUME else CREATE,
        INFORMATIONAL,
        SUCCESS,
        origin,
        access,
        actor=_actor(principal),
        resource=_resource(target),
    )


def throttled_event(kind: str, name: str, seconds: float) -> Event:
    """A publish rate has held producers back for ``seconds``."""
    target = Target.of_topic(TopicName.parse(name)) if kind == "topic" else Target()
    return _event(
        LIFECYCLE,
        OTHER,
        INFORMATIONAL,
        SUCCESS,
        Origin("broker"),
        "throttled",
        detail="publish rate",
        resource=_resource(target) or {"type": kind, "name": _cut(name)},
        duration_ms=int(seconds * 1000),
    )


def lifecycle_event(operation: str, detail: str = "", activity: int = OTHER) -> Event:
    """What the broker itself did."""
    return _event(
        LIFECYCLE, activity, INFORMATIONAL, SUCCESS, Origin("broker"), operation, detail=detail
    )


def is_change(operation: Operation) -> bool:
    """Whether a request that is no GET changes something, or else reads and writes messages."""
    if isinstance(operation, PolicyOperation):
        return operation.writes
    return operation not in _DATA and operation.right.name not in ("NOTHING", "LOGIN")


def is_of_clients(operation: Operation) -> bool:
    """Whether a change is such as producers and consumers may make: to move subscriptions."""
    return bool(operation.right.actions)


def shows_body(operation: Operation) -> bool:
    """Whether the body of a request is shown: where it is a policy or a permission, no secret."""
    kinds = (TargetKind.NAMESPACE_POLICY, TargetKind.TOPIC_POLICY, TargetKind.TENANT)
    return operation.kind in kinds or operation.name in ("GRANT_PERMISSION", "ADMINISTER_TENANT")


_DATA = (
    TopicOperation.PRODUCE,
    TopicOperation.CONSUME,
    TopicOperation.PEEK_MESSAGES,
    TopicOperation.LOOKUP,
)
ACCESSES: Mapping[Operation, str] = {
    TopicOperation.PRODUCE: PRODUCE,
    TopicOperation.CONSUME: CONSUME,
    TopicOperation.PEEK_MESSAGES: CONSUME,
}
"""What an operation on messages is to those who ask who had which data."""


def _event(
    class_uid: int,
    activity_id: int,
    severity_id: int,
    status_id: int,
    origin: Origin,
    operation: str,
    *,
    detail: str = "",
    **more: Any,
) -> Event:
    event = {
        "class_uid": class_uid,
        "activity_id": activity_id,
        "type_uid": class_uid * 100 + activity_id,
        "severity_id": severity_id,
        "status_id": status_id,
        "status_detail": _text(detail),
        "via": origin.via,
        "src_endpoint": _endpoint(origin.address),
        "tls": None if origin.tls is None else _tls(origin.tls),
        "client_version": _text(origin.client_version),
        "operation": _cut(operation),
        **more,
    }
    return {key: value for key, value in event.items() if value is not None}


def _actor(principal: Principal | None) -> dict[str, str] | None:
    if principal is None:
        return None
    found = {
        "role": principal.role,
        "original_role": principal.original,
        "method": principal.method,
        "token_id": principal.token_id,
        "cn": principal.cn,
    }
    return {key: _cut(value) for key, value in found.items() if value}


def _endpoint(address: str) -> dict[str, Any] | None:
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit():
        return {"ip": _cut(host), "port": int(port[:5])}
    return {"ip": _cut(address)} if address else None


def _tls(peer: TlsPeer) -> dict[str, Any]:
    shown = {"subject": peer.subject, "issuer": peer.issuer, "serial_number": peer.serial}
    certificate = {key: _cut(value) for key, value in shown.items() if value}
    found = {"version": peer.version, "cipher": peer.cipher}
    return found | ({"certificate": certificate} if certificate else {})


def _resource(target: Target) -> dict[str, str] | None:
    kind, name = next(
        (
            (kind, name)
            for kind, name in (
                ("topic", target.topic),
                ("namespace", target.namespace),
                ("tenant", target.tenant),
            )
            if name
        ),
        ("", ""),
    )
    if not name:
        return None
    found = {"type": kind, "tenant": target.tenant, "namespace": target.namespace, "name": name}
    if target.subscription is not None:
        found["subscription"] = target.subscription
    return {key: _cut(value) for key, value in found.items() if value}


def _authz(judged: Judged) -> dict[str, Any]:
    granted, rule = judged.decision
    return {"operation": str(judged.operation), "rule": rule.value, "granted": granted}


def _http(call: Call) -> dict[str, Any] | None:
    if not call.method:
        return None
    return {"method": call.method, "route": _cut(call.route), "status": call.status}


def _cut(text: str) -> str:
    return text[:AUDIT_TEXT_CHARS_MAX]


def _text(text: str) -> str | None:
    return _cut(text) or None
