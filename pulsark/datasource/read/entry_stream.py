"""The entries of a split over Arrow Flight: complete and in order, or an error.

A broken stream is resumed after the last entry received. Only an error ends a read early: a task
that returned fewer rows than planned would lose messages silently.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.flight as fl

from pulsark.datasource.admin.client import SparkAdmin
from pulsark.datasource.options.errors import (
    DataLossError,
    DataSourceError,
    TopicNotFoundError,
    UnavailableError,
)
from pulsark.wire.flight_refusals import INVALID, NOT_FOUND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pulsark.admin_client.credentials import Credentials
    from pulsark.datasource.admin.partitions import PartitionState
    from pulsark.datasource.plan.plan import Span, Split

Ids = npt.NDArray[np.int64]

_PAUSE_SECONDS = 0.02
_PAUSE_SECONDS_MAX = 1.0
_RETRIED = (
    fl.FlightUnavailableError,
    fl.FlightTimedOutError,
    fl.FlightInternalError,
    fl.FlightCancelledError,
    fl.FlightServerError,
    OSError,
)

_CHANNEL_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
]
"""gRPC's own pause between connections grows to two minutes, whatever the caller's is."""

_clients: dict[str, fl.FlightClient] = {}


class EntryColumns(NamedTuple):
    """Consecutive entries of a split: three columns of equal length."""

    ledger_ids: list[int]
    entry_ids: list[int]
    entries: list[bytes]


class Remaining:
    """What of a split is still to come; checks that it comes gapless and in order."""

    def __init__(self, split: Split, fail_on_gap: bool) -> None:
        self._name = split.name
        self._fail_on_gap = fail_on_gap
        self._spans: list[Span] = list(split.spans)
        self.last = (split.spans[-1].ledger_id, split.spans[-1].last)

    @property
    def first(self) -> tuple[int, int]:
        """The next entry expected; not when ``done``."""
        return self._spans[0].ledger_id, self._spans[0].first

    @property
    def done(self) -> bool:
        """Whether everything has come."""
        return not self._spans

    def take(self, ledger_ids: Ids, entry_ids: Ids) -> None:
        """Note entries as received; ``DataLossError`` at a gap, ``DataSourceError`` otherwise."""
        at = 0
        while at < len(entry_ids):
            if self.done:
                raise self._surprise(ledger_ids[at], entry_ids[at])
            span = self._spans[0]
            count = min(span.entries, len(entry_ids) - at)
            expected = np.arange(span.first, span.first + count)
            right = (ledger_ids[at : at + count] == span.ledger_id) & (
                entry_ids[at : at + count] == expected
            )
            good = count if right.all() else int(right.argmin())
            self._advance(good)
            at += good
            if good < count:
                self._gap(int(ledger_ids[at]), int(entry_ids[at]))

    def skip_all(self) -> None:
        """Give up on the rest, which is gone; ``DataLossError`` if that is not allowed."""
        if self._fail_on_gap:
            raise self._loss("the end of the topic")
        self._spans.clear()

    def _advance(self, count: int) -> None:
        span = self._spans[0]
        if count == span.entries:
            del self._spans[0]
        elif count:
            self._spans[0] = span._replace(first=span.first + count)

    def _gap(self, ledger_id: int, entry_id: int) -> None:
        found = (ledger_id, entry_id)
        if found <= self.first or found > self.last:
            raise self._surprise(ledger_id, entry_id)
        if self._fail_on_gap:
            raise self._loss(f"{ledger_id}:{entry_id}")
        while not self.done and self._spans[0].ledger_id < ledger_id:
            del self._spans[0]
        if self.done or self._spans[0].ledger_id != ledger_id:
            raise self._surprise(ledger_id, entry_id)
        if not self._spans[0].first <= entry_id <= self._spans[0].last:
            raise self._surprise(ledger_id, entry_id)
        self._spans[0] = self._spans[0]._replace(first=entry_id)

    def _loss(self, found: str) -> DataLossError:
        ledger_id, entry_id = self.first
        return DataLossError(
            f"{self._name}: message {ledger_id}:{entry_id} is gone, next comes {found}. Set "
            "option failOnDataLoss to false to go on without it"
        )

    def _surprise(self, ledger_id: int, entry_id: int) -> DataSourceError:
        return DataSourceError(f"{self._name}: {ledger_id}:{entry_id} was not asked for")


def read_entries(
    split: Split,
    *,
    patience_s: float,
    fail_on_data_loss: bool,
    find_partition: Callable[[], PartitionState | None],
    credentials: Credentials,
) -> Iterator[EntryColumns]:
    """All entries of a split; ``UnavailableError`` after ``patience_s`` without any progress."""
    remaining = Remaining(split, fail_on_data_loss)
    url = split.flight_url
    deadline = time.monotonic() + patience_s
    pause = _PAUSE_SECONDS
    while not remaining.done:
        problem = "the broker ended the stream early"
        try:
            for chunk in _stream(url, split, remaining, patience_s, credentials):
                yield chunk
                deadline = time.monotonic() + patience_s
                pause = _PAUSE_SECONDS
        except fl.FlightUnauthenticatedError:
            raise DataSourceError(
                f"{url} refused the login: {credentials.why_refused(SparkAdmin.login_advice)}"
            ) from None
        except _RETRIED as error:
            problem = _first_line(error)
            refusal = getattr(error, "extra_info", b"")
            if refusal == INVALID:
                raise DataSourceError(problem) from error
            if refusal != NOT_FOUND:
                _forget(url)
            elif fail_on_data_loss:
                raise TopicNotFoundError(problem) from error
            else:
                remaining.skip_all()
        except pa.ArrowInvalid as error:
            raise DataSourceError(_first_line(error)) from error
        if remaining.done:
            return
        if time.monotonic() + pause > deadline:
            ledger_id, entry_id = remaining.first
            raise UnavailableError(
                f"{split.name}: no entry {ledger_id}:{entry_id} from {url} within "
                f"{patience_s:g} s ({problem}); the option pollTimeoutMs sets how long to wait"
            )
        time.sleep(pause)
        pause = min(pause * 2, _PAUSE_SECONDS_MAX)
        url = _look_again(find_partition, split, remaining, url)


def _stream(
    url: str, split: Split, remaining: Remaining, patience_s: float, credentials: Credentials
) -> Iterator[EntryColumns]:
    ticket = {
        "topic": split.name,
        "topicId": split.topic_id,
        "first": remaining.first,
        "last": remaining.last,
        "compacted": split.compacted is not None,
    }
    # The time limit of a call is for all of it: a slow query is merely resumed behind it.
    headers = [
        (name.lower().encode(), value.encode()) for name, value in credentials.headers().items()
    ]
    options = fl.FlightCallOptions(timeout=patience_s, headers=headers)
    reader = _client(url, credentials).do_get(fl.Ticket(json.dumps(ticket).encode()), options)
    for chunk in reader:
        batch = chunk.data
        if not batch.num_rows:
            continue
        ledger_ids, entry_ids = batch.column(0).to_numpy(), batch.column(1).to_numpy()
        remaining.take(ledger_ids, entry_ids)
        yield EntryColumns(ledger_ids.tolist(), entry_ids.tolist(), batch.column(2).to_pylist())


def _client(url: str, credentials: Credentials) -> fl.FlightClient:
    """A connection of this process; Spark's Python workers live on and use it again.

    Each call brings its own login; a certificate is the same in all of a session.
    """
    client = _clients.get(url)
    if client is None:
        secured = credentials.for_flight() if url.startswith("grpc+tls:") else {}
        client = _clients[url] = fl.connect(url, generic_options=_CHANNEL_OPTIONS, **secured)
    return client


def _forget(url: str) -> None:
    client = _clients.pop(url, None)
    if client is not None:
        client.close()


def _look_again(
    find_partition: Callable[[], PartitionState | None],
    split: Split,
    remaining: Remaining,
    url: str,
) -> str:
    """Return where the partition is now: ``url`` if no lookup succeeds now.

    If all that is to come was deleted meanwhile, give it up; ``DataLossError``.
    """
    try:
        state = find_partition()
    except UnavailableError:
        return url
    if state is None:
        return url
    if _is_trimmed(split, state):
        remaining.skip_all()
    return state.flight_url


def _is_trimmed(split: Split, state: PartitionState) -> bool:
    """Return whether all that is left of a split was deleted since it was planned."""
    last = split.spans[-1].ledger_id, split.spans[-1].last
    is_same = state.topic_id == split.topic_id and split.compacted is None
    return is_same and state.trimmed.position >= last


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    line = text[0] if text else type(error).__name__
    return line.split(". Detail: ", 1)[0].split(". gRPC client debug context", 1)[0]
