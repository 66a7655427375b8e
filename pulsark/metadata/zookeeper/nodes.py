"""What ZooKeeper keeps: nodes, operations on them and how these are refused. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from pulsark.errors import MetadataRefusedError

ANY: Final = -1
"""A version that matches any."""

VERSION_MAX: Final = (1 << 31) - 1
"""A request with a larger one cannot be sent."""


class Node(NamedTuple):
    """A node's data and what the server says of it."""

    data: bytes
    version: int
    """Starts at 0 when the node is created, again after a deletion, and rises with each change."""
    owner: int
    """The session that an ephemeral node ends with, or 0."""
    children: int
    created: int
    """The transaction that created the node. It never repeats."""
    changed: int
    """The transaction that changed its data last."""
    created_children: int
    """How many children were ever created. The next sequential child has this number."""


@dataclass(frozen=True, slots=True)
class CreateNode:
    """Create a node, whose parent must exist. The result is its path."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False
    """The server adds a rising number of ten digits to the name."""


@dataclass(frozen=True, slots=True)
class SetNode:
    """Change a node's data. The result is its new version."""

    path: str
    data: bytes
    version: int = ANY


@dataclass(frozen=True, slots=True)
class DeleteNode:
    """Delete a node without children."""

    path: str
    version: int = ANY


@dataclass(frozen=True, slots=True)
class CheckNode:
    """Do nothing, if the node exists and is at a version."""

    path: str
    version: int = ANY


Operation: TypeAlias = CreateNode | SetNode | DeleteNode | CheckNode
Result: TypeAlias = str | int | None


class NodeError(MetadataRefusedError):
    """ZooKeeper refused an operation because of the state of a node."""

    problem: str = "cannot be changed"

    def __init__(self, path: str, index: int = 0) -> None:
        super().__init__(f"ZooKeeper's node {path} {self.problem}")
        self.path = path
        self.index = index
        """Which operation of a multi failed."""


class NoNodeError(NodeError):
    """The node, or the parent of a new one, does not exist."""

    problem = "does not exist, or has no parent"


class NodeExistsError(NodeError):
    """There is a node already."""

    problem = "exists"


class NodeVersionError(NodeError):
    """The node is at another version."""

    problem = "is at another version"


class NotEmptyError(NodeError):
    """The node has children."""

    problem = "has children"


class EphemeralParentError(NodeError):
    """The parent of the new node is ephemeral, and so can have no children."""

    problem = "has an ephemeral parent"
