"""The instance of a metadata store in etcd: its identity, and the key of a session."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from pulsark.errors import CorruptMetadataError, MetadataError
from pulsark.metadata.etcd import messages
from pulsark.metadata.etcd.messages import txn_answer
from pulsark.metadata.initialisation import COMMAND

if TYPE_CHECKING:
    from pulsark.metadata.etcd.address import EtcdAddress
    from pulsark.metadata.etcd.gateway import Gateway
    from pulsark.metadata.etcd.layout import Layout

FORMAT: Final = 1


async def find_or_create(
    gateway: Gateway, address: EtcdAddress, layout: Layout, identity: str, deadline: float,
    *, create: bool,
) -> str:  # fmt: skip
    """The identity of the store there. ``MetadataError`` if there is none to use."""
    read = messages.get(layout.instance)
    if create:
        document = json.dumps({"version": FORMAT, "identity": identity}).encode()
        made = [messages.put(layout.instance, document), messages.put(layout.history, b"")]
        body = messages.transaction([messages.is_at(layout.instance, 0)], made, [])
        # If another process was first, or an earlier attempt, this one does nothing.
        await gateway.read("kv/txn", body, deadline)
    body = messages.transaction([], [read])
    found = txn_answer(await gateway.read("kv/txn", body, deadline)).found[0]
    if not found:
        raise MetadataError(
            f"{address} has no metadata store of Pulsark: it is another etcd or another path than "
            "before, or has lost its data. Nothing is served from it. For a new cluster run "
            f"`{COMMAND}` once"
        )
    try:
        document = json.loads(found[0].value)
        version = document["version"]
        if version == FORMAT:
            return str(document["identity"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptMetadataError(f"the instance in {address} cannot be read") from error
    raise CorruptMetadataError(
        f"the metadata store in {address} has format {version}, "
        f"this release knows {FORMAT}: a newer one wrote it"
    )


async def begin_session(
    gateway: Gateway, layout: Layout, lease: int, deadline: float
) -> messages.KeyValue:
    """Make the key that the session has for as long as it lives; returns the history."""
    made = [messages.put(layout.session(lease), b"", lease), messages.get(layout.history)]
    body = messages.transaction([messages.is_there(layout.history)], made, [])
    answer = txn_answer(await gateway.read("kv/txn", body, deadline))
    if not answer.succeeded:
        raise MetadataError("etcd has lost the history of the metadata store")
    return answer.found[1][0]
