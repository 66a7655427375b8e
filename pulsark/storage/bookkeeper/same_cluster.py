"""Whether the bookies are those of the metadata store: another cluster's must not pass for them.

Two clusters of BookKeeper give the same ids to different ledgers. A broker with a wrong address
would find others' ledgers under the ids of its topics, or none, and would make ledgers that the
other brokers read elsewhere. So the first one notes the id of the cluster, and all compare it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from pulsark.errors import BadVersionError, ConfigError, MetadataError
from pulsark.metadata.documents import check_version
from pulsark.metadata.paths import BOOKKEEPER
from pulsark.metadata.settled import put_settled
from pulsark.metadata.store import ABSENT
from pulsark.storage.bookkeeper.paths import INSTANCE_ID

if TYPE_CHECKING:
    from pulsark.metadata.store import MetadataStore
    from pulsark.metadata.zookeeper.lasting import RawNodes

FORMAT_VERSION: Final = 1


async def check_same_cluster(
    metadata: MetadataStore, zookeeper: RawNodes, root: str, where: str
) -> None:
    """``ConfigError`` if there is no cluster below ``root``, or it is not that of ``metadata``.

    ``where``: how the address is called in the message. A store that knows none learns this one.
    """
    node = await zookeeper.get(f"{root}/{INSTANCE_ID}")
    if node is None:
        raise ConfigError(
            f"bookkeeperMetadataServiceUri: there is no BookKeeper at {where}. Check the address; "
            "for a new cluster run `pulsark initialize-cluster-metadata` once"
        )
    here = node.data.decode(errors="replace").strip()
    known = await _known(metadata)
    if known is None:
        document = {"version": FORMAT_VERSION, "instanceId": here}
        try:
            await put_settled(metadata, BOOKKEEPER, json.dumps(document).encode(), ABSENT)
        except BadVersionError:  # another broker was faster
            known = await _known(metadata)
    if known not in (None, here):
        raise ConfigError(
            f"bookkeeperMetadataServiceUri: the BookKeeper at {where} is {here}, and the topics of "
            f"this metadata store are in {known}. Check the address: all brokers need the same one"
        )


async def _known(metadata: MetadataStore) -> str | None:
    found = await metadata.get(BOOKKEEPER)
    if found is None:
        return None
    try:
        document = json.loads(found.value)
        check_version(document, FORMAT_VERSION)
        return str(document["instanceId"])
    except (KeyError, TypeError, ValueError) as e:
        raise MetadataError(f"the record {BOOKKEEPER} cannot be read: {e!r}") from e
