"""Every pair of features, with a model of what the client should see (``feature_pairs``)."""

from __future__ import annotations

import os
from itertools import combinations

import pytest

from tests.sim.feature_pairs import FEATURES, run

FIRST_SEED = int(os.environ.get("SEED", "0"))
SEEDS = 1 if "SEED" in os.environ else int(os.environ.get("PAIR_SEEDS", "2"))
SETS = [*combinations(FEATURES, 2), tuple(FEATURES)]


@pytest.mark.parametrize("features", SETS, ids=" and ".join)
def test_a_client_sees_what_it_should(features: tuple[str, ...]) -> None:
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
        run(features, seed)
