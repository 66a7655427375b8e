"""The checker of histories finds each kind of damage that is planted."""

from __future__ import annotations

import copy

import pytest

from tests.support.history import Delivery, History, Id, Subscription, violations

SENDS = 20


def good_history() -> History:
    """Two producers over two partitions; every third send is repeated before its receipt."""
    history = History()
    entries = {0: 0, 1: 0}
    for sequence in range(SENDS):
        for producer in ("a", "b"):
            payload, partition = (producer, sequence), sequence % 2
            history.sent.add(payload)
            for _ in range(2 if sequence % 3 == 0 else 1):
                id_ = Id(partition, 7, entries[partition])
                entries[partition] += 1
                history.log.append((id_, payload))
            history.receipts[payload] = id_
    history.sent.add(("a", SENDS))  # never confirmed, never stored
    history.log.sort(key=lambda item: item[0])
    return history


def found(history: History) -> str:
    return "; ".join(violations(history))


def test_a_good_history_has_no_violation() -> None:
    assert violations(good_history()) == []


def test_an_unconfirmed_send_may_be_stored() -> None:
    history = good_history()
    history.log.append((Id(0, 8, 0), ("a", SENDS)))
    assert violations(history) == []


def test_loss() -> None:
    history = good_history()
    payload = ("a", 4)
    history.log = [item for item in history.log if item[1] != payload]
    assert "lost: ('a', 4)" in found(history)


def test_loss_of_the_confirmed_copy_alone() -> None:
    history = good_history()
    receipt = history.receipts["a", 3]
    history.log = [item for item in history.log if item[0] != receipt]
    assert "moved: ('a', 3)" in found(history)


def test_reorder() -> None:
    history = good_history()
    places = [i for i, item in enumerate(history.log) if item[1][0] == "a"]
    first, later = places[2], places[4]
    for here, there in ((first, later), (later, first)):
        history.receipts[history.log[here][1]] = history.log[there][0]
    a, b = history.log[first], history.log[later]
    history.log[first], history.log[later] = (a[0], b[1]), (b[0], a[1])
    assert "order: " in found(history)


def test_a_reader_that_goes_back() -> None:
    history = good_history()
    history.log[3], history.log[4] = history.log[4], history.log[3]
    assert "read order: " in found(history)


def test_duplicate_of_a_confirmed_send() -> None:
    history = good_history()
    payload = history.log[0][1]
    history.log.append((Id(0, 9, 0), payload))
    assert "after it was confirmed" in found(history)


def test_duplicate_in_another_partition() -> None:
    history = good_history()
    history.log.insert(0, (Id(1, 1, 0), ("a", 0)))
    assert "is in partition 1" in found(history)


def test_an_id_read_twice() -> None:
    history = good_history()
    history.log.insert(1, history.log[0])
    assert "id twice" in found(history)


def test_an_id_confirmed_twice() -> None:
    history = good_history()
    history.receipts["a", 1] = history.receipts["b", 1]
    assert "id twice" in found(history)


def test_phantom() -> None:
    history = good_history()
    history.log.append((Id(1, 9, 0), ("c", 0)))
    assert "phantom: ('c', 0)" in found(history)


def acked_history() -> History:
    """Entries 0 to 9 delivered; even ones acked, and a second subscription acked up to 4."""
    ids = [Id(0, 1, entry) for entry in range(10)]
    one, many = Subscription("one"), Subscription("many")
    one.deliveries = [Delivery(1, id_) for id_ in ids] + [Delivery(2, id_) for id_ in ids[1::2]]
    one.confirmed = dict.fromkeys(ids[::2], 1)
    many.deliveries = [Delivery(1, id_) for id_ in ids] + [Delivery(2, id_) for id_ in ids[5:]]
    many.confirmed_up_to = [(ids[2], 1), (ids[4], 1), (ids[9], 2)]
    return History(subscriptions=[one, many])


def test_good_acks() -> None:
    assert violations(acked_history()) == []


@pytest.mark.parametrize(("index", "entry"), [(0, 4), (1, 4), (1, 0)])
def test_an_ack_that_comes_back(index: int, entry: int) -> None:
    history = acked_history()
    history.subscriptions[index].deliveries.append(Delivery(2, Id(0, 1, entry)))
    assert "ack came back" in found(history)


def test_an_ack_is_bound_to_its_partition() -> None:
    history = acked_history()
    history.subscriptions[1].deliveries.append(Delivery(2, Id(1, 1, 0)))
    assert violations(history) == []


def test_long_lists_are_cut() -> None:
    history = copy.deepcopy(good_history())
    history.log.clear()
    assert len(violations(history)) == 6
