"""A namespace that was deleted leaves nothing, and its name can be used again at any time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pulsark.dispatch.upkeep import deleted_namespaces
from pulsark.dispatch.upkeep.deleted_namespaces import DeletedNamespaces
from pulsark.metadata.changes import Change
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.metadata.paths import BUNDLE_EPOCHS, CURSORS, REMOVED_LEDGERS, cursors_path
from pulsark.metadata.store import MetadataStore, Versioned
from pulsark.metadata.two_stores import TwoStores
from pulsark.storage.cursor.bundle_record import BundleState, FormerLedger
from tests.support.two_brokers import TwoBrokers

SPACE = "public/gone"
V2 = "/admin/v2"
START = {"ledgerId": 0, "entryId": 0}


@pytest.fixture
def both() -> Iterator[TwoBrokers]:
    found = TwoBrokers()
    yield found
    found.close()


def rounds(both: TwoBrokers, *, apart: bool = False) -> None:
    """``apart``: namespaces are in another store than what is left of them."""
    for node in (*both.nodes, *both.nodes):
        broker = node.broker
        metadata: MetadataStore = broker.metadata
        if apart:
            metadata = TwoStores(metadata, both.run(other_session(both.tree)))
        chore = DeletedNamespaces(metadata, broker.ownership, broker.bundle_release, broker.share)
        both.run(chore.look())


async def other_session(tree: MemoryTree) -> MetadataStore:
    return MemoryMetadataStore(tree)


def used(both: TwoBrokers, number: int = 4) -> None:
    """A namespace with topics and subscriptions at both brokers."""
    assert both.call(both.a, "PUT", f"{V2}/namespaces/{SPACE}", {}).status == 204
    for n in range(number):
        topic = f"{V2}/persistent/{SPACE}/t{n}"
        name = f"persistent://{SPACE}/t{n}"
        if both.run(both.owner(name)) is None:
            both.give(name, both.nodes[n % 2])
        assert both.call(both.a, "PUT", topic, {}).status == 204
        assert both.call(both.a, "PUT", f"{topic}/subscription/s", START).status == 204


def deleted(both: TwoBrokers, number: int = 4) -> None:
    for n in range(number):
        assert both.call(both.b, "DELETE", f"{V2}/persistent/{SPACE}/t{n}").status == 204
    assert both.call(both.b, "DELETE", f"{V2}/namespaces/{SPACE}").status == 204


def left(both: TwoBrokers) -> list[str]:
    trees = (BUNDLE_EPOCHS, CURSORS, "/namespace")
    return [name for tree in trees for name in both.tree.children(f"{tree}/{SPACE}")]


@pytest.mark.parametrize("apart", [False, True])
def test_nothing_is_left_of_it_and_its_ledgers_go(both: TwoBrokers, apart: bool) -> None:
    used(both)
    before = set(left(both))
    rounds(both, apart=apart)
    assert set(left(both)) == before != set(), "it is there"
    ledgers = {
        ledger_id
        for bundle in both.tree.children(f"{CURSORS}/{SPACE}")
        for ledger_id in _state(both, f"{SPACE}/{bundle}").own_ledgers
    }
    deleted(both)
    assert left(both)
    rounds(both, apart=apart)
    assert left(both) == []
    assert ledgers
    assert ledgers <= {int(name) for name in both.tree.children(REMOVED_LEDGERS)}
    used(both)
    assert left(both)


def _state(both: TwoBrokers, bundle: str) -> BundleState:
    found = both.tree.get(cursors_path(bundle))
    assert found is not None
    return BundleState.from_json(found.value)


def test_a_namespace_that_is_made_again_meanwhile_keeps_all(both: TwoBrokers) -> None:
    used(both)
    deleted(both)
    for node in both.nodes:
        both.run(node.broker.bundle_release.release_namespace(SPACE))
    before = left(both)
    leader = next(node for node in both.nodes if node.broker.share.leads)
    commit = leader.broker.metadata.commit

    async def late(changes: list[Change]) -> object:
        if len(changes) > 2 and not made:
            made.append(True)
            await both.nodes[0].broker.resources.namespaces.create(SPACE, boundaries=())
        return await commit(changes)

    made: list[bool] = []
    leader.broker.metadata.commit = late  # type: ignore[method-assign, assignment]
    rounds(both)
    assert made
    assert left(both) == before


def test_so_does_one_in_another_store_than_what_was_left(both: TwoBrokers) -> None:
    used(both)
    deleted(both)
    for node in both.nodes:
        both.run(node.broker.bundle_release.release_namespace(SPACE))
    before = left(both)
    leader = next(node for node in both.nodes if node.broker.share.leads)
    get = leader.broker.metadata.get

    async def late(path: str) -> Versioned | None:
        found = await get(path)
        if path.startswith(CURSORS) and not made:
            made.append(True)
            await both.nodes[0].broker.resources.namespaces.create(SPACE, boundaries=())
        return found

    made: list[bool] = []
    leader.broker.metadata.get = late  # type: ignore[method-assign]
    rounds(both, apart=True)
    assert made
    assert left(both) == before


def test_cursors_with_a_long_history_go_in_pieces(
    both: TwoBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deleted_namespaces, "LEDGERS_A_COMMIT", 3)
    history = tuple(FormerLedger(100 + n, n, n + 1, 1, borrowed=n == 2) for n in range(8))
    state = BundleState(1, 200, (201,), 9, history)
    path = cursors_path(f"{SPACE}/0x00000000_0xffffffff")
    both.run(both.a.broker.metadata.put(path, state.to_json()))
    rounds(both)
    some = {int(name) for name in both.tree.children(REMOVED_LEDGERS)}
    assert 3 <= len(some) < 9
    rounds(both)
    rounds(both)
    assert left(both) == []
    gone = {int(name) for name in both.tree.children(REMOVED_LEDGERS)}
    assert gone == {100, 101, *range(103, 108), 200, 201}
