"""What the job that fills storage roots does when its broker goes."""

from __future__ import annotations

from typing import Any

import pytest

from pulsark.datasource.options.errors import DataSourceError, UnavailableError
from pulsark.jobs import replicate_ledgers
from pulsark.jobs.job import Context, JobError
from pulsark.jobs.replicate_ledgers import Parameters


class Moving:
    """A broker with tables that get another root, which it does not answer to."""

    def __init__(self, error: DataSourceError) -> None:
        self.sealing = self
        self.asked = 0
        self._error = error

    def copies(self, topics: Any, after: str) -> dict[str, Any]:
        table = {"wanted": ["/b/t/n/id"], "directories": ["/a/t/n/id"], "logs": {}, "ledgers": []}
        tables = [{**table, "topic": f"t{number}"} for number in range(3)]
        return {"roots": {"/b": ""}, "tables": tables, "next": ""}

    def place(self, topic: str, directories: Any) -> None:
        self.asked += 1
        raise self._error


def run(broker: Moving, monkeypatch: pytest.MonkeyPatch) -> None:
    context: Any = Context("replicate_ledgers")
    monkeypatch.setattr(context, "admin", lambda wanted: broker)
    replicate_ledgers.run(Parameters(), context)


def test_what_is_refused_of_one_table_keeps_no_other_one_from_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = Moving(DataSourceError("look again"))
    with pytest.raises(JobError, match="look again"):
        run(broker, monkeypatch)
    assert broker.asked == 3


def test_a_broker_that_is_gone_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Moving(UnavailableError("no answer"))
    with pytest.raises(UnavailableError):
        run(broker, monkeypatch)
    assert broker.asked == 1
