"""Which bundle is split by itself, and where a bundle is cut."""

from __future__ import annotations

import pytest

from pulsark.config.settings import Settings
from pulsark.dispatch.brokers.load import BundleLoad
from pulsark.dispatch.brokers.splitting import ALGORITHMS, SplitLimits, to_split

LIMITS = SplitLimits(10, 20, 100, 1000, 3)
OTHER = "t/m/0x00000000_0xffffffff"


def bundle(number: int) -> str:
    return f"t/n/0x{number:08x}_0x{number + 1:08x}"


@pytest.mark.parametrize(
    ("load", "splits"),
    [
        (BundleLoad(10, 20, 50, 50, 500, 500), False),
        (BundleLoad(11), True),
        (BundleLoad(2, 21), True),
        (BundleLoad(2, 2, 51, 50), True),
        (BundleLoad(2, 2, 0, 0, 501, 500), True),
        (BundleLoad(1, 100, 1000, 1000, 10_000, 10_000), False),  # one topic cannot be split
    ],
)
def test_what_is_too_much_for_a_bundle(load: BundleLoad, splits: bool) -> None:
    assert to_split({bundle(0): load}, {"t/n": 2}, LIMITS) == (bundle(0) if splits else None)
    assert to_split({bundle(0): load}, {"t/n": 2}, SplitLimits(0, 0, 0, 0)) is None


def test_the_one_that_is_most_beyond_a_limit_is_first() -> None:
    loads = {bundle(0): BundleLoad(11), bundle(1): BundleLoad(2, 60), OTHER: BundleLoad(20)}
    assert to_split(loads, {"t/n": 2, "t/m": 1}, LIMITS) == bundle(1)
    assert to_split(loads, {"t/n": 3, "t/m": 1}, LIMITS) == OTHER
    assert to_split(loads, {"t/n": 3, "t/m": 4}, LIMITS) is None
    assert to_split({}, {}, LIMITS) is None


def test_limits_are_those_of_pulsar() -> None:
    assert SplitLimits.from_settings(Settings()) == SplitLimits(1000, 1000, 30_000, 100 << 20, 128)


def test_where_it_is_cut() -> None:
    middle, topics, positions, _ = ALGORITHMS.values()
    assert middle(0, 0xFFFFFFFF, [], []) == [0x7FFFFFFF]
    assert middle(4, 5, [], []) == []
    assert topics(0, 100, [(90, 9), (10, 0), (20, 0), (30, 0)], []) == [25]
    assert topics(0, 100, [(90, 0), (10, 0), (20, 0)], []) == [15]
    assert topics(0, 100, [(90, 0)], []) == topics(0, 100, [], []) == []
    assert topics(5, 100, [(5, 0), (6, 0)], []) == [6], "each has one"
    assert topics(5, 100, [(6, 0), (6, 0)], []) == []
    assert positions(10, 100, [], [50, 10, 100, 11, 50, 200]) == [11, 50]


def test_as_much_goes_on_in_both_parts() -> None:
    by_load = ALGORITHMS["flow_or_qps_equally_divide"]
    assert by_load(0, 100, [(10, 1.0), (20, 1.0), (30, 1.0), (90, 3.0)], []) == [60]
    assert by_load(0, 100, [(10, 9.0), (20, 1.0), (30, 1.0)], []) == [15]
    assert by_load(0, 100, [(10, 0.0), (20, 5.0), (30, 5.0)], []) == [25]
    assert by_load(0, 100, [(10, 9.0), (20, 0.0)], []) == [], "it is in one of them anyway"
    assert by_load(0, 100, [(10, 0.0), (20, 0.0)], []) == []
    assert by_load(0, 100, [(10, 5.0)], []) == []
