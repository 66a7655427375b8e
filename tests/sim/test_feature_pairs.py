"""Every pair of features, alone and with a third one, with a model of what the client should see.

The model and the steps are in ``feature_pairs``.
"""

from __future__ import annotations

import os
import random
from itertools import combinations

import pytest

from tests.sim.feature_pairs import FEATURES, run

FIRST_SEED = int(os.environ.get("SEED", "0"))
SEEDS = 1 if "SEED" in os.environ else int(os.environ.get("PAIR_SEEDS", "3"))


@pytest.mark.parametrize("pair", list(combinations(FEATURES, 2)), ids=" and ".join)
def test_a_client_sees_what_it_should(pair: tuple[str, str]) -> None:
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
        rng = random.Random(f"{pair}/{seed}")
        third = rng.sample(sorted(FEATURES.keys() - set(pair)), seed % 3 != 0)
        run({*pair, *third}, seed)


def test_a_client_sees_what_it_should_of_all_features() -> None:
    for seed in range(FIRST_SEED, FIRST_SEED + 4 * SEEDS):
        run(FEATURES, seed)
