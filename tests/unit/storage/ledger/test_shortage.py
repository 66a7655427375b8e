"""What is said of a ledger with too few copies, for each state of its bookies."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pulsark.storage.ledger.bookies import LedgerBookies, Shortage
from tests.sim.simulation import Simulation
from tests.support.ledgers import Cluster, simulate

NAMES = ["b1", "b2", "b3", "b4"]


@given(
    st.sets(st.sampled_from(NAMES)),
    st.sets(st.sampled_from(NAMES)),
    st.sets(st.sampled_from(NAMES)),
    st.sets(st.sampled_from(NAMES)),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_a_shortage_is_what_the_bookies_that_are_there_say(
    there: set[str], away: set[str], suspect: set[str], failed: set[str], size: int, wanted: int
) -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 0)
        for name in sorted(there):
            cluster.add(name)
        bookies = LedgerBookies(cluster.bookies, cluster.runtime)
        for name in suspect:
            bookies.failed(name)
        for name in there & away:
            cluster.bookies[name].leave()
        found = bookies.shortage(sorted(failed), size, wanted)
        sound = len(there - suspect - away)
        if not failed and size >= wanted:
            assert found is Shortage.NONE
        elif sound >= wanted and sound >= size:
            assert found is Shortage.NEEDLESS
        elif failed - there:
            assert found is Shortage.PRESSING
        else:
            assert found is Shortage.LASTING

    simulate(main)
