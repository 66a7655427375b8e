"""Names of topics and namespaces, of both generations.

``persistent://tenant/namespace/local`` is a full name. ``local`` alone stands for a topic of
``public/default`` and ``tenant/namespace/local`` for a persistent one. The first generation put
the cluster between tenant and namespace; such a name means the topic without it. A name that
ends in ``-partition-N`` is partition N of a partitioned topic.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pulsark.errors import ClientError, ServerError
from pulsark.limits import NAME_CHARS_MAX, TOPIC_NAME_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

PERSISTENT = "persistent"
NON_PERSISTENT = "non-persistent"
_SCALABLE = "topic"

_DEFAULT_TENANT = "public"
_DEFAULT_NAMESPACE = "default"
_part = re.compile(r"[-=:.\w]+", re.ASCII)
_partition_suffix = re.compile(r"(.+)-partition-(0|[1-9][0-9]{0,8})", re.DOTALL)
_unprintable = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


@dataclass(frozen=True, slots=True, order=True)
class TopicName:
    """A valid full name; make it with ``parse``.

    ``namespace`` and ``local`` are single parts; ``local`` includes the partition suffix.
    ``partition`` is -1 unless the name is one of a partition.
    """

    domain: str
    tenant: str
    namespace: str
    local: str
    partition: int = -1

    @classmethod
    def parse(cls, text: str) -> TopicName:
        """Read a name in any accepted form; ``ClientError`` (InvalidTopicName) if none fits."""
        domain, tenant, namespace, local = _split(text)
        if domain == _SCALABLE:
            domain = PERSISTENT
        if domain not in (PERSISTENT, NON_PERSISTENT):
            raise _invalid(text, "a topic is persistent:// or non-persistent://")
        check_name_part("tenant", tenant)
        check_name_part("namespace", namespace)
        if not local.strip() or local in (".", ".."):
            raise _invalid(text, "the topic's own name is missing")
        if _unprintable.search(local):
            raise _invalid(text, "it contains a control character")
        found = _partition_suffix.fullmatch(local)
        return cls(domain, tenant, namespace, local, int(found[2]) if found else -1)

    def __str__(self) -> str:
        return f"{self.domain}://{self.tenant}/{self.namespace}/{self.local}"

    @property
    def namespace_name(self) -> str:
        """``tenant/namespace``."""
        return f"{self.tenant}/{self.namespace}"

    @property
    def is_persistent(self) -> bool:
        """Whether messages of the topic are stored."""
        return self.domain == PERSISTENT

    @property
    def base(self) -> TopicName:
        """The partitioned topic that this partition belongs to; else the name itself."""
        if self.partition < 0:
            return self
        found = _partition_suffix.fullmatch(self.local)
        return replace(self, local=found[1] if found else self.local, partition=-1)

    def partitions(self, count: int) -> Iterator[TopicName]:
        """The first partitions of a topic. There may be very many."""
        base = self.base
        for index in range(count):
            yield replace(base, local=f"{base.local}-partition-{index}", partition=index)

    def partition_names(self, count: int) -> list[str]:
        """Their full names."""
        prefix = f"{self.base}-partition-"
        return [f"{prefix}{index}" for index in range(count)]

    def with_partition(self, index: int) -> TopicName:
        """Partition ``index`` (>= 0) of the topic, or of the topic this is a partition of."""
        if not 0 <= index < 10**9:
            raise ValueError(f"No partition has the number {index}")
        return replace(self, local=f"{self.base.local}-partition-{index}", partition=index)


def without_partition(text: str) -> str:
    """A name, or the end of one, without the suffix of a partition."""
    found = _partition_suffix.fullmatch(text) if "-partition-" in text else None
    return found[1] if found else text


def _split(text: str) -> tuple[str, str, str, str]:
    """Domain, tenant, namespace and local name, none of them checked."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise _invalid(text, "it is not Unicode text") from None
    if size > TOPIC_NAME_BYTES_MAX:
        raise _invalid(text[:64] + "...", f"it is longer than {TOPIC_NAME_BYTES_MAX} bytes")
    domain, separator, rest = text.partition("://")
    if not separator:
        domain, rest = PERSISTENT, text
    parts = rest.split("/")
    match parts:
        case [local] if not separator:
            return domain, _DEFAULT_TENANT, _DEFAULT_NAMESPACE, local
        case [tenant, namespace, local]:
            return domain, tenant, namespace, local
        case [tenant, cluster, namespace, local] if separator:
            check_name_part("cluster", cluster)
            return domain, tenant, namespace, local
    raise _invalid(text, "it is not of the form persistent://tenant/namespace/topic")


def check_name_part(kind: str, text: str) -> str:
    """Return the name of a tenant, namespace or cluster, or raise ``ClientError``.

    Letters, digits and ``_ - = : .`` of ASCII are allowed, but not ``.`` and ``..`` alone.
    """
    if len(text) > NAME_CHARS_MAX or text in (".", "..") or not _part.fullmatch(text):
        shown = text[:64].encode("ascii", "backslashreplace").decode()
        raise ClientError(
            ServerError.InvalidTopicName,
            f"Invalid {kind} name {shown!r}: up to {NAME_CHARS_MAX} letters, digits and _ - = : .",
        )
    return text


def parse_namespace(text: str) -> tuple[str, str]:
    """``(tenant, namespace)`` of ``tenant/namespace`` or ``tenant/cluster/namespace``."""
    parts = text.split("/")
    if len(parts) not in (2, 3):
        raise _invalid(text[:64], "a namespace is of the form tenant/namespace")
    if len(parts) == 3:
        check_name_part("cluster", parts[1])
    return check_name_part("tenant", parts[0]), check_name_part("namespace", parts[-1])


def _invalid(text: str, reason: str) -> ClientError:
    shown = text.encode("ascii", "backslashreplace").decode()
    return ClientError(ServerError.InvalidTopicName, f"Invalid name {shown!r}: {reason}")
