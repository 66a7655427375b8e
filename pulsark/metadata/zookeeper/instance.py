"""The instance of a metadata store in ZooKeeper: its identity, and what must be there first."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pulsark.errors import CorruptMetadataError, MetadataError, OutcomeUnknownError
from pulsark.limits import METADATA_COMMIT_BYTES_MAX
from pulsark.metadata.initialisation import COMMAND
from pulsark.metadata.zookeeper.layout import (
    BASE,
    CHANGES,
    DELETIONS,
    DIRECTORIES,
    HISTORY,
    INSTANCE,
    NOWHERE,
    PARTS,
    SESSIONS,
    TREE,
    part_node,
)
from pulsark.metadata.zookeeper.nodes import CreateNode, NodeError, NodeExistsError

if TYPE_CHECKING:
    from pulsark.metadata.zookeeper.client import ZooKeeperClient
    from pulsark.runtime import Runtime

FORMAT: Final = 1
_OVERHEAD_BYTES: Final = 128 << 10
"""What a commit of the largest size needs beside its values: paths, checks and what is told."""
_SECONDS_EACH: Final = 0.005
"""About how long the servers are busy with the request of one process."""


@dataclass(frozen=True, slots=True)
class Instance:
    """What a store is, from its creation on."""

    identity: str
    directories: int


async def find_or_create(client: ZooKeeperClient, identity: str, *, create: bool) -> Instance:
    """The instance below the client's root. ``MetadataError`` if there is none to use."""
    found = await client.get(INSTANCE)
    if found is None:
        if not create:
            raise MetadataError(
                f"{client.address} has no metadata store of Pulsark: it is another ZooKeeper or "
                "another path than before, or has lost its data. Nothing is served from it. For a "
                f"new cluster run `{COMMAND}` once"
            )
        await client.make(BASE)
        with suppress(NodeExistsError):  # another process was first
            await client.multi(_skeleton(identity))
        found = await client.get(INSTANCE)
    if found is None:
        raise MetadataError(f"{client.address} does not keep what is written")
    return decode_instance(found.data, client.address)


def decode_instance(data: bytes, where: object) -> Instance:
    """What the node ``INSTANCE`` says; ``CorruptMetadataError``."""
    try:
        document = json.loads(data)
        version = document["version"]
        if version == FORMAT:
            return Instance(document["identity"], document["directories"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptMetadataError(f"{INSTANCE} in {where} cannot be read") from error
    raise CorruptMetadataError(
        f"the metadata store in {where} has format {version}, "
        f"this release knows {FORMAT}: a newer one wrote it"
    )


def _skeleton(identity: str) -> list[CreateNode]:
    document = {"version": FORMAT, "identity": identity, "directories": DIRECTORIES}
    return [
        CreateNode(INSTANCE, json.dumps(document).encode()),
        *map(CreateNode, (TREE, CHANGES, SESSIONS, HISTORY, DELETIONS)),
        *(CreateNode(part_node(part), b"0") for part in range(PARTS)),
    ]


async def check_size(client: ZooKeeperClient, runtime: Runtime) -> None:
    """Raise ``MetadataError`` if the server does not accept the largest commit.

    It closes the connection then; a caller that tried again would never get an answer. All
    processes may start together, and the servers hold in memory what they have not answered. So
    those that have a session take turns, roughly.
    """
    others = len(await client.children(SESSIONS)) - 1
    await asyncio.sleep(runtime.rng.uniform(0, others * _SECONDS_EACH))
    largest = bytes(METADATA_COMMIT_BYTES_MAX + _OVERHEAD_BYTES)
    for attempt in range(2):  # the connection may be lost for another reason
        try:
            await client.set(NOWHERE, largest)
        except NodeError:
            return
        except OutcomeUnknownError as error:
            if attempt:
                raise MetadataError(
                    f"{client.address} does not accept requests of {len(largest)} bytes: start "
                    "its servers with -Djute.maxbuffer=4194304, or more"
                ) from error
