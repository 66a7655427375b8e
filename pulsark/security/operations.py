"""The operations of clients, with the rights that they need.

Names are Pulsar's. Each operation has a ``Right`` that a role must have, and a ``TargetKind`` that
decides how a denial is answered, because clients expect Pulsar's answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Right(Enum):
    """The right that an operation needs. A super user has all of them."""

    def __init__(self, label: str, *actions: str) -> None:
        self.label = label
        self.actions = frozenset(actions)
        """Grants of any of these actions give the right; if empty, no grant does."""

    NOTHING = ("nothing",)
    """Not even a login."""
    LOGIN = ("a login",)
    SUPER_USER = ("a super user",)
    TENANT_ADMIN = ("an administrator of the tenant",)
    """Among the tenant's ``adminRoles``, which also have all rights below."""
    EITHER = "produce or consume", "produce", "consume"
    PRODUCE = "produce", "produce"
    CONSUME = "consume", "consume"
    """If the target names a subscription, the rules of subscriptions apply as well."""
    CONSUME_NAMED = "consume, of one subscription", "consume"
    """The same. Without a subscription it is on all of them, which only tenant admins may do."""


class TargetKind(Enum):
    """The kind of target of an operation, with the HTTP status of its denial."""

    def __init__(self, label: str, status: int) -> None:
        self.label = label
        self.status = status

    GENERAL = "general", 401
    TENANT = "tenant", 401
    NAMESPACE = "namespace", 403
    TOPIC = "topic", 401
    NAMESPACE_POLICY = "namespace policy", 403
    TOPIC_POLICY = "topic policy", 403


class _Named(Enum):
    """An operation whose value is its right; equal rights do not make equal operations."""

    right: Right

    def __new__(cls, right: Right) -> _Named:
        """Number the members, so that none becomes an alias of another."""
        member = object.__new__(cls)
        member._value_ = len(cls.__members__)
        member.right = right
        return member

    @property
    def kind(self) -> TargetKind:
        """What it is on."""
        return TargetKind.GENERAL

    def __str__(self) -> str:
        return f"{self.kind.label} {self.name}"


class GeneralOperation(_Named):
    """Operations on no tenant, or for administrators of any tenant."""

    OPEN = Right.NOTHING
    LOGIN = Right.LOGIN
    SUPER_USER = Right.SUPER_USER
    ADMINISTER_TENANT = Right.TENANT_ADMIN


class TenantOperation(_Named):
    """Operations on a tenant. Its administrators cannot change it, as they could add others."""

    LIST_TENANTS = Right.SUPER_USER
    CREATE_TENANT = Right.SUPER_USER
    GET_TENANT = Right.TENANT_ADMIN
    UPDATE_TENANT = Right.SUPER_USER
    DELETE_TENANT = Right.SUPER_USER
    LIST_NAMESPACES = Right.TENANT_ADMIN
    CREATE_NAMESPACE = Right.TENANT_ADMIN
    DELETE_NAMESPACE = Right.TENANT_ADMIN

    @property
    def kind(self) -> TargetKind:
        """What it is on."""
        return TargetKind.TENANT


class NamespaceOperation(_Named):
    """Operations on a namespace. Grants on single topics do not give these rights."""

    GET_TOPICS = Right.EITHER
    GET_BUNDLE = Right.EITHER
    DELETE_BUNDLE = Right.TENANT_ADMIN
    UNSUBSCRIBE = Right.CONSUME_NAMED
    CLEAR_BACKLOG = Right.CONSUME_NAMED
    CREATE_TOPIC = Right.TENANT_ADMIN
    DELETE_TOPIC = Right.TENANT_ADMIN
    GRANT_PERMISSION = Right.TENANT_ADMIN
    GET_PERMISSION = Right.TENANT_ADMIN
    REVOKE_PERMISSION = Right.TENANT_ADMIN

    @property
    def kind(self) -> TargetKind:
        """What it is on."""
        return TargetKind.NAMESPACE


class TopicOperation(_Named):
    """Operations on a topic or partition."""

    LOOKUP = Right.EITHER
    GET_STATS = Right.EITHER
    GET_METADATA = Right.EITHER
    PRODUCE = Right.PRODUCE
    CONSUME = Right.CONSUME
    SUBSCRIBE = Right.CONSUME
    UNSUBSCRIBE = Right.CONSUME
    GET_SUBSCRIPTIONS = Right.CONSUME
    SKIP = Right.CONSUME
    EXPIRE_MESSAGES = Right.CONSUME
    PEEK_MESSAGES = Right.CONSUME
    RESET_CURSOR = Right.CONSUME
    GET_BACKLOG_SIZE = Right.CONSUME
    GET_REPLICATED_SUBSCRIPTION_STATUS = Right.CONSUME
    SET_REPLICATED_SUBSCRIPTION_STATUS = Right.CONSUME
    TERMINATE = Right.TENANT_ADMIN
    COMPACT = Right.TENANT_ADMIN
    OFFLOAD = Right.TENANT_ADMIN
    UNLOAD = Right.TENANT_ADMIN
    TRIM_TOPIC = Right.TENANT_ADMIN
    UPDATE_METADATA = Right.TENANT_ADMIN
    DELETE_METADATA = Right.TENANT_ADMIN
    SEAL = Right.TENANT_ADMIN

    @property
    def kind(self) -> TargetKind:
        """What it is on."""
        return TargetKind.TOPIC


@dataclass(frozen=True, slots=True)
class PolicyOperation:
    """Reading or writing a policy of a namespace or topic, which only tenant admins may do."""

    policy: str
    """Pulsar's name of a group of policies, such as ``TTL`` or ``RATE``."""
    writes: bool
    kind: TargetKind = TargetKind.NAMESPACE_POLICY

    @property
    def right(self) -> Right:
        """The right that it needs."""
        return Right.TENANT_ADMIN

    @property
    def name(self) -> str:
        """The operation's part of its name."""
        return "WRITE" if self.writes else "READ"

    def __str__(self) -> str:
        return f"{self.kind.label} {self.policy} {self.name}"


Operation = (
    GeneralOperation | TenantOperation | NamespaceOperation | TopicOperation | PolicyOperation
)
