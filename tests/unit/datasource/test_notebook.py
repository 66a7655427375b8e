"""``pulsark.notebook``: what it finds, and how that looks as text and as HTML."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pulsark.datasource.options.errors import OptionError, TopicNotFoundError
from pulsark.notebook import BARS_MAX, Table, bars, lag, preview, tail, watch
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.batch import build_batch
from pulsark.wire.entry import build_entry
from tests.support.fake_broker import FakeBroker


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeBroker]:
    with FakeBroker() as fake:
        monkeypatch.setenv("PULSARK_ADMIN_URL", fake.admin_url)
        yield fake


def message(text: str, published: int, **more: Any) -> bytes:
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=1, publish_time=1_700_000_000_000 + published, **more
    )
    return build_entry(metadata, text.encode())


def batch(texts: str, published: int) -> bytes:
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=1, publish_time=1_700_000_000_000 + published
    )
    single = [(pb.SingleMessageMetadata(payload_size=0), text.encode()) for text in texts]
    return build_batch(metadata, single)


def values(table: Table) -> str:
    return "".join(row["value"].decode() for row in table.rows)


def test_tail_and_preview_over_ledgers(broker: FakeBroker) -> None:
    topic = broker.create("t")
    broker.publish(topic, [message("a", 0), message("b", 1), batch("cde", 2)])
    broker.roll(topic)
    broker.publish(topic, [message("f", 3)])
    broker.roll(topic)
    broker.roll(topic)
    broker.publish(topic, [message("g", 4), batch("hi", 5)])
    assert values(tail("t", 1)) == "i"
    assert values(tail("t", 4)) == "fghi"
    assert values(tail("t", 6)) == "defghi"
    assert values(tail("t", 100)) == "abcdefghi"
    assert values(preview("t", 1)) == "a"
    assert values(preview("t", 4)) == "abcd"
    assert values(preview("t", 100)) == "abcdefghi"
    assert preview("t", 2).title.startswith("t: the first 2 of 6 entries, ")


def test_partitions_are_merged_by_time(broker: FakeBroker) -> None:
    topic = broker.create("t", 3)
    broker.publish(topic, [message("a", 0), message("c", 2)], 0)
    broker.publish(topic, [message("b", 1), message("d", 3)], 1)
    assert values(tail("t", 3)) == "bcd"
    assert values(preview("t", 3)) == "abc"
    assert "in 3 partitions" in tail("t").title


def test_what_cannot_be_shown(broker: FakeBroker) -> None:
    broker.create("t")
    assert tail("t").rows == []
    assert repr(tail("t")).startswith("t: the last 0 of 0 entries, 0 bytes\n")
    with pytest.raises(OptionError, match="n is 0: it must be from 1 to 10000"):
        tail("t", 0)
    with pytest.raises(TopicNotFoundError, match="missing does not exist"):
        preview("missing")


def test_cells_are_short_escaped_and_printable(broker: FakeBroker) -> None:
    topic = broker.create("t")
    properties = [pb.KeyValue(key="<k>", value="v")]
    broker.publish(topic, [message("<b>\n\x1b" + "x" * 100, 0, properties=properties)])
    broker.publish(topic, [build_entry(_plain(), b"\xff\x00")])
    table = tail("t")
    text, page = repr(table), table._repr_html_()
    assert "\x1b" not in text
    assert "<b>" not in page
    assert "&lt;b&gt;" in page
    assert "&lt;k&gt;=v" in page
    assert "ff 00" in text
    assert max(map(len, text.splitlines())) < 250


def _plain() -> pb.MessageMetadata:
    return pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)


def test_lag_is_drawn(broker: FakeBroker) -> None:
    topic = broker.create("t", 2)
    broker.views["backlog"] = [
        {
            "topic": topic,
            "partition": partition,
            "subscription": name,
            "backlog_entries": backlog,
            "backlog_bytes": 10 * backlog,
            "oldest_unacked_time": None,
            "lag_seconds": 1.5,
        }
        for name, partition, backlog in (("s", 1, 25), ("s", 0, 100), ("r", 0, 0))
    ]
    table = lag("t")
    names = [(row["subscription"], row["partition"]) for row in table.rows]
    assert names == [("r", 0), ("s", 0), ("s", 1)]
    lines = repr(table).splitlines()
    full, quarter = lines[3].count("\u2588"), lines[4].count("\u2588")
    assert (full, quarter) == (10, 2)
    assert "\u258c" in lines[4]  # and a half
    assert "\u2588" not in lines[2]
    page = table._repr_html_()
    assert [f"width:{width}px" in page for width in (160, 40, 0)] == [True] * 3


class FakeFrame:
    """Three rows, of which a DataFrame gives as many as are asked for."""

    columns = ["name", "late"]

    def limit(self, most: int) -> FakeFrame:
        assert most == BARS_MAX
        return self

    def collect(self) -> list[Any]:
        rows = [("a", -5.25), ("long name", 1200.0), ("c", None)]
        named = [{"name": name, "late": late} for name, late in rows]
        return [SimpleNamespace(asDict=row.copy) for row in named]


def test_a_dataframe_is_drawn() -> None:
    frame: Any = FakeFrame()
    table = bars(frame, "late", "Delays")
    assert repr(table).splitlines() == [
        "Delays",
        "name        late",
        "a          -5.25",
        "long name  1,200  " + 10 * "\u2588",
        "c",
    ]
    assert "text-align:right" in table._repr_html_()
    with pytest.raises(OptionError, match="did you mean 'late'"):
        bars(frame, "lat")


# -- watch ---------------------------------------------------------------------------------------


def newest(behind: int) -> str:
    return json.dumps({"partitions": {}, "behind": {"entries": behind, "bytes": 0}})


def progress(batch_id: int, rows: int, latest: str | None) -> Any:
    return SimpleNamespace(
        batchId=batch_id,
        numInputRows=rows,
        inputRowsPerSecond=10.4,
        processedRowsPerSecond=20.0,
        batchDuration=125,
        sources=[SimpleNamespace(latestOffset=latest)],
    )


class FakeQuery:
    """Ends after so many batches, one at each look at it."""

    name = "orders"

    def __init__(self, batches: list[Any], error: Exception | None = None) -> None:
        self._batches = batches
        self._error = error
        self._seen = 0

    def awaitTermination(self, timeout: float) -> bool:
        assert timeout > 0
        if self._seen == len(self._batches) and self._error is not None:
            raise self._error
        self._seen += 1
        return self._error is None and self._seen == len(self._batches)

    @property
    def recentProgress(self) -> list[Any]:
        return self._batches[: self._seen]


def seen_by(query: Any, **more: Any) -> tuple[list[Table], Table]:
    shown: list[Table] = []
    show: Callable[[Table], None] = shown.append
    return shown, watch(query, interval=0.1, show=show, **more)


def test_a_query_is_watched_to_its_end() -> None:
    batches = [
        progress(0, 10, newest(3)),
        progress(1, 20, newest(5)),
        progress(2, 5, None),
    ]
    shown, last = seen_by(FakeQuery(batches))
    assert [len(table.rows) for table in shown] == [1, 2, 3]
    assert [row["entries behind"] for row in last.rows] == [3, 5, None]
    assert last.rows[1] | {} == {
        "batch": 1,
        "rows": 20,
        "in/s": 10,
        "out/s": 20,
        "ms": 125,
        "entries behind": 5,
    }
    assert last.title == "query orders"


class FakeKernel:
    """As much of IPython as shows tables: what it showed, in which cell."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.execution_count = 7
        self.shown: list[list[int]] = []
        for name, module in {
            "ipykernel": SimpleNamespace(),
            "IPython": SimpleNamespace(get_ipython=lambda: self),
            "IPython.display": SimpleNamespace(display=self._display),
        }.items():
            monkeypatch.setitem(sys.modules, name, module)

    def _display(self, table: Table, *, display_id: bool) -> Any:
        assert display_id
        outputs = [len(table.rows)]
        self.shown.append(outputs)
        return SimpleNamespace(update=lambda table: outputs.append(len(table.rows)))


def test_a_cell_shows_one_table_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = FakeKernel(monkeypatch)
    batches = [progress(number, 10, None) for number in range(3)]
    query: Any = FakeQuery(batches)
    table: Any = watch(query, interval=0.1)
    assert kernel.shown == [[1, 2, 3]]
    # As the value of its own cell it would stand there twice.
    assert table._ipython_display_() is None
    kernel.execution_count += 1
    with pytest.raises(NotImplementedError):
        table._ipython_display_()
    assert "<caption>query orders</caption>" in table._repr_html_()
    assert table.rows[2]["batch"] == 2


def test_watching_ends_by_time_and_shows_only_news() -> None:
    query = FakeQuery([progress(0, 1, None)] * 1000)
    shown, last = seen_by(query, seconds=0.0)
    assert last is shown[-1]
    assert len(shown) == 1


def test_a_query_that_has_read_nothing_says_so() -> None:
    query = FakeQuery([])
    query._seen = -1
    (table,), last = seen_by(query)
    assert last.rows == []
    assert repr(table).splitlines()[0] == "query orders: no batch yet"


def test_what_made_a_query_fail_is_raised(capsys: pytest.CaptureFixture[str]) -> None:
    query: Any = FakeQuery([progress(0, 7, None)], RuntimeError("broken"))
    with pytest.raises(RuntimeError, match="broken"):
        watch(query)
    assert capsys.readouterr().out.startswith("batch 0  rows 7  in/s 10")
