"""What the demo prints."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from rich import box
from rich.console import Console
from rich.table import Table

from examples.flights.flights import NO_DELAYS, Answer, Delays

_NUMBERS = {"Flights": 7, "Cancelled": 9, "Departure": 9, "Arrival": 7, "Worst day": 12}
"""Columns of numbers and how wide they must be."""


def carriers_table(answer: Answer, names: Mapping[str, str]) -> Table:
    """A line a carrier: its year, and its worst day."""
    years: dict[str, Delays] = defaultdict(lambda: NO_DELAYS)
    worst: dict[str, tuple[float, str]] = {}
    for (carrier, day), delays in answer.items():
        years[carrier] += delays
        worst[carrier] = max(worst.get(carrier, (float("-inf"), "")), (_mean(delays), day))
    table = Table(
        title="Flights from New York in 2013, mean delays in minutes", box=box.SIMPLE_HEAD
    )
    table.add_column("Carrier", width=17, no_wrap=True, overflow="ellipsis")
    for heading, width in _NUMBERS.items():
        table.add_column(heading, justify="right", no_wrap=True, min_width=width)
    for carrier, year in sorted(years.items(), key=lambda item: -item[1].scheduled):
        arrival = year.arrival_delay / year.arrived if year.arrived else 0.0
        delay, day = worst[carrier]
        table.add_row(
            f"{carrier} {names.get(carrier, '')}",
            f"{year.scheduled:,}",
            f"{year.scheduled - year.departed:,}",
            f"{_mean(year):.1f}",
            f"{arrival:.1f}",
            f"{day[5:]} {delay:6.1f}",
        )
    return table


def _mean(delays: Delays) -> float:
    return delays.departure_delay / delays.departed if delays.departed else float("-inf")


def compare(console: Console, found: Answer, expected: Answer) -> bool:
    """Print whether both answers are the same, and the first differences if they are not."""
    different = [
        key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key)
    ]
    if not different:
        total = sum(expected.values(), NO_DELAYS)
        console.print(
            f"[green]matches[/green]: {len(expected):,} carrier-days with {total.scheduled:,} "
            f"flights, {total.departed:,} departures and {total.departure_delay:,} minutes of "
            "delay are exactly those that pandas computes from the file"
        )
        return True
    console.print(f"[red]differs[/red] in {len(different):,} of {len(expected):,} carrier-days:")
    for key in sorted(different)[:10]:
        console.print(f"  {key}: Spark {found.get(key)}, pandas {expected.get(key)}")
    return False
