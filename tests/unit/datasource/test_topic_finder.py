"""When a stream asks the broker again: soon after an outage, and before it says "nothing new"."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pulsark.datasource.options.errors import UnavailableError
from pulsark.datasource.options.options import Options
from pulsark.datasource.plan import topics as module
from pulsark.datasource.plan.topics import TopicFinder
from pulsark.datasource.read.layout import layout_of
from pulsark.datasource.read.stream_api import ReadAllAvailable
from pulsark.datasource.read.stream_reader import PulsarkStreamReader
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.entry import build_entry
from tests.support.fake_broker import FakeBroker


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Admin:
    """Answers after ``cost_s``, once it has waited ``away_s`` for the broker."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.topics = self
        self.waited_s = self.away_s = self.cost_s = 0.0
        self.polls = 0
        self.listed: list[str] = []

    def partitions(self, *_: Any, **__: Any) -> list[Any]:
        self.polls += 1
        self.clock.now += self.away_s + self.cost_s
        self.waited_s += self.away_s
        return []

    def names(self, _: str) -> list[str]:
        return self.listed


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def seconds_until_due(finder: TopicFinder, clock: Clock) -> float:
    before = clock.now
    finder.wait_until_due()
    return clock.now - before


def finder_of(admin: Admin, **raw: str) -> TopicFinder:
    return TopicFinder(Options.parse(raw), admin)  # type: ignore[arg-type]


@pytest.mark.parametrize("outage_s", [0.5, 5.0, 110.0])
def test_the_length_of_an_outage_does_not_delay_the_next_poll(
    clock: Clock, outage_s: float
) -> None:
    admin = Admin(clock)
    finder = finder_of(admin, topic="t")
    admin.away_s, admin.cost_s = outage_s, 3.0  # a broker that has just started is slow
    finder.states()
    assert seconds_until_due(finder, clock) == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("cost_s", "pause_s"), [(0.001, 0.02), (0.03, 0.3), (0.3, 1.0), (1.0, 2.0)]
)
def test_the_pause_grows_with_the_cost_of_a_poll_up_to_a_limit(
    clock: Clock, cost_s: float, pause_s: float
) -> None:
    admin = Admin(clock)
    admin.cost_s = cost_s
    finder = finder_of(admin, topic="t")
    finder.states()
    finder.states()
    assert admin.polls == 1
    assert seconds_until_due(finder, clock) == pytest.approx(pause_s)
    finder.states()
    assert admin.polls == 2


def test_an_answer_is_as_old_as_its_question(clock: Clock) -> None:
    admin = Admin(clock)
    admin.cost_s = 1.0
    finder = finder_of(admin, topic="t")
    finder.states()
    assert finder.is_newer_than(100.0)
    assert not finder.is_newer_than(100.5)


def test_with_a_pattern_the_listing_has_to_be_new_as_well(clock: Clock) -> None:
    finder = finder_of(Admin(clock), topicsPattern="t.*")
    finder.states()
    clock.now += 0.5
    finder.states()
    assert not finder.is_newer_than(clock.now)
    clock.now += 0.6
    finder.states()
    assert finder.is_newer_than(clock.now)


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as fake:
        yield fake


def entry(text: str) -> bytes:
    return build_entry(
        pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1), text.encode()
    )


@pytest.fixture
def stream(broker: FakeBroker) -> Callable[..., PulsarkStreamReader]:
    def stream(**raw: str) -> PulsarkStreamReader:
        given = {"adminUrl": broker.admin_url, "startingOffsets": "earliest"} | raw
        layout = layout_of(Options.parse({"topic": "t"}), dict)
        return PulsarkStreamReader(Options.parse(given, streaming=True), layout, ("value",))

    return stream


def test_nothing_new_is_never_said_from_memory(
    broker: FakeBroker,
    stream: Callable[..., PulsarkStreamReader],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = broker.create("t")
    broker.publish(name, [entry("a")])
    reader = stream(topic="t")
    start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    # As after a poll that took long: what is remembered would be good for ten minutes.
    reader._topics()._known._stale_at += 600
    monkeypatch.setattr(TopicFinder, "wait_until_due", lambda finder: _expire(finder))
    broker.publish(name, [entry("b")])
    assert reader.latestOffset(start, ReadAllAvailable()) != start
    reader.stop()


def _expire(finder: TopicFinder) -> None:
    finder._known._stale_at = float("-inf")


def test_what_is_remembered_begins_a_batch_at_once(
    broker: FakeBroker,
    stream: Callable[..., PulsarkStreamReader],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = broker.create("t")
    broker.publish(name, [entry("a")])
    reader = stream(topic="t")
    start = reader.initialOffset()
    reader._topics()._known._stale_at += 600
    monkeypatch.setattr(TopicFinder, "wait_until_due", lambda _: pytest.fail("it waits"))
    assert reader.latestOffset(start, ReadAllAvailable()) != start
    reader.stop()


def test_available_now_ends_at_what_is_there_when_it_begins(
    broker: FakeBroker, stream: Callable[..., PulsarkStreamReader]
) -> None:
    name = broker.create("t")
    broker.publish(name, [entry("a")])
    reader = stream(topic="t")
    reader.initialOffset()
    reader._topics()._known._stale_at += 600
    broker.publish(name, [entry("b")])
    reader.prepareForTriggerAvailableNow()
    assert reader._target is not None
    (end,) = reader._target.partitions.values()
    assert end.read.entry_id == 1
    reader.stop()


@pytest.mark.parametrize("retries", [0, 2])
def test_a_stream_asks_again_as_often_as_it_is_told(
    broker: FakeBroker,
    stream: Callable[..., PulsarkStreamReader],
    monkeypatch: pytest.MonkeyPatch,
    retries: int,
) -> None:
    broker.create("t")
    asked: list[int] = []

    def fails(*_: Any, **__: Any) -> None:
        asked.append(1)
        raise UnavailableError("away")

    monkeypatch.setattr(TopicFinder, "states", fails)
    more = {"fetchOffset.numRetries": str(retries), "fetchOffset.retryIntervalMs": "0"}
    with pytest.raises(UnavailableError):
        stream(topic="t", **more).initialOffset()
    assert len(asked) == retries + 1
