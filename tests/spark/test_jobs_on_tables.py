"""Jobs on tables as users submit them: sealed, a root lost and filled again, erased, let go."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.support.seal_contract import BOOKIES, SETTINGS, admin, consumed, publish, rows, tables
from tests.support.standalone import Standalone
from tests.support.submitted import submitted

BY_JOBS_ONLY = {"PULSARK_sealByJobs": "true", "PULSARK_retentionCheckIntervalInSeconds": "86400"}
"""The broker itself seals nothing and lets nothing go."""
ENV = {**SETTINGS, **BY_JOBS_ONLY}
TOPIC = "/admin/v2/persistent/public/default/t"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """Three bookies, and a topic with 100 messages on them."""
    with Standalone(tmp_path_factory.mktemp("fleet") / "data", *BOOKIES, env=ENV) as broker:
        publish(broker, "t", 0, 100)
        yield broker


@pytest.mark.slow
@pytest.mark.feature("F70")
def test_a_lost_root_is_filled_again_under_spark_submit(fleet: Standalone) -> None:
    before = consumed(fleet, "t", "before", 100)
    sealed = submitted("seal_ledgers", fleet, "--everything")
    assert (sealed["tables"], sealed["rows"]) == (1, 100)
    lost = tables(fleet)[1].parents[2]
    fleet.stop()
    shutil.rmtree(lost)
    fleet.start()
    found = submitted("replicate_ledgers", fleet, "--verify")
    assert (found["copies"], found["written"]) == (3 * sealed["files"], sealed["files"])
    assert found["recoveredRoots"] == [str(lost)]
    assert [rows(table) for table in tables(fleet)] == [100] * 3
    assert consumed(fleet, "t", "after", 100) == before


@pytest.mark.slow
@pytest.mark.feature("F53")
def test_messages_are_erased_and_let_go_under_spark_submit(fleet: Standalone) -> None:
    words = ["--topic", "t", "--where", "key = 'k7'", "--vacuum-hours", "0"]
    erased = submitted("erase_messages", fleet, *words)
    assert (erased["messages"], erased["missing"]) == (1, 0)
    assert erased["stillHeld"]["oldTableFiles"] == 0
    left = consumed(fleet, "t", "erased", 99)
    assert "k7" not in {key for _, _, key, _ in left}
    nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    for kept in ("retention", "tableRetention"):
        admin(fleet, "POST", f"{TOPIC}/{kept}", nothing)
    for name in ("before", "after", "erased"):
        admin(fleet, "POST", f"{TOPIC}/subscription/{name}/skip_all")
    gone = submitted("apply_retention", fleet, "--topic", "t")
    assert gone["rows"] > 0
    assert rows(tables(fleet)[0]) == 99 - gone["rows"]
