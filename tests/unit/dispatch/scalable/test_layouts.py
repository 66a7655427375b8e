"""Layouts of ordinary topics."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsark.dispatch.scalable.layouts import HASHES, check_has_layout, first_layout, hash_range
from pulsark.errors import ClientError, ServerError
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.frames import FrameDecoder
from pulsark.wire.layout_fields import layout_frame, segment_fields
from pulsark.wire.topic_name import TopicName

NAME = TopicName.parse("persistent://t/n/x")


@given(count=st.integers(1, HASHES))
def test_ranges_of_hashes_follow_each_other(count: int) -> None:
    ranges = [hash_range(number, count) for number in range(count)]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == HASHES - 1
    for (_, before), (start, _) in pairwise(ranges):
        assert start == before + 1


@given(count=st.integers(1, 100_000), data=st.data())
def test_a_range_is_one_that_clients_accept(count: int, data: st.DataObject) -> None:
    start, end = hash_range(data.draw(st.integers(0, count - 1)), count)
    assert 0 <= start <= end < HASHES


def test_a_segment_is_a_partition() -> None:
    layout = first_layout(NAME, 4, 7)
    assert [tuple(segment) for segment in layout.segments()] == [
        (0, 0, 16383, "persistent://t/n/x-partition-0"),
        (1, 16384, 32767, "persistent://t/n/x-partition-1"),
        (2, 32768, 49151, "persistent://t/n/x-partition-2"),
        (3, 49152, 65535, "persistent://t/n/x-partition-3"),
    ]
    assert layout.resolved_name == "topic://t/n/x"
    assert layout.epoch == 4
    assert [str(layout.partition(k)) for k in range(4)] == [s.topic for s in layout.segments()]


def test_a_topic_without_partitions_is_one_segment() -> None:
    layout = first_layout(NAME, 0, 7)
    assert [tuple(segment) for segment in layout.segments()] == [(0, 0, 65535, str(NAME))]
    assert layout.partition(0) == NAME


@given(counts=st.lists(st.integers(0, 50), min_size=2))
def test_a_later_layout_has_a_higher_epoch(counts: list[int]) -> None:
    layout = first_layout(NAME, counts[0], 7)
    for count in counts[1:]:
        later = layout.after(count)
        assert later.epoch > layout.epoch
        assert len(later) == max(count, 1)
        layout = later


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("non-persistent://t/n/x", ServerError.NotAllowedError),
        ("persistent://t/n/x-partition-3", ServerError.TopicNotFound),
    ],
)
def test_what_has_no_layout(name: str, code: ServerError) -> None:
    with pytest.raises(ClientError) as raised:
        check_has_layout(TopicName.parse(name))
    assert raised.value.code == code


@given(count=st.integers(0, 1000), step=st.integers(1, 400), session=st.integers(0, 2**64 - 1))
def test_the_pieces_of_a_frame_are_the_command(count: int, step: int, session: int) -> None:
    layout = first_layout(NAME, count, 12345)
    segments = list(layout.segments())
    steps = range(0, len(segments), step)
    pieces = [segment_fields(segments[start : start + step], 12345) for start in steps]
    frame = layout_frame(session, layout.resolved_name, layout.epoch, pieces)
    ((command, _),) = FrameDecoder(1 << 24).receive(b"".join(frame))
    expected = pb.BaseCommand(type=pb.BaseCommand.SCALABLE_TOPIC_UPDATE)
    update = expected.scalableTopicUpdate
    update.session_id, update.resolved_topic_name = session, "topic://t/n/x"
    update.dag.epoch = count
    for number, start, end, topic in segments:
        update.dag.segments.add(
            segment_id=number,
            hash_start=start,
            hash_end=end,
            state=pb.SegmentState.ACTIVE,
            created_at_epoch=0,
            created_at_ms=12345,
            legacy_topic_name=topic,
        )
    assert command == expected
