"""Medians, spreads and ratios, as a table of at most 80 columns and as JSON."""

from __future__ import annotations

import os
import platform
import statistics
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.scenarios import Measure
from benchmarks.usage import Usage, file_system

DISTURBED_CORES = 0.5
"""The kernel's own work for the brokers (network, write-back) stays below this."""


@dataclass(slots=True)
class Row:
    """All runs of one measure; the samples of both sides were taken alternately."""

    measure: Measure
    peer_name: str = "Pulsar"
    pulsark: list[float] = field(default_factory=list)
    peer: list[float] = field(default_factory=list)
    usage: dict[str, list[Usage]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    """Why a side could not be measured to the end."""

    def add(self, broker: str, value: float, usage: Usage | None = None) -> None:
        """Take one sample of ``Pulsark`` or of its peer."""
        (self.pulsark if broker == "Pulsark" else self.peer).append(value)
        if usage is not None:
            self.usage.setdefault(broker, []).append(usage)

    @property
    def ratio(self) -> float | None:
        """Median of Pulsark over median of its peer; ``None`` if a side was not measured."""
        if not self.pulsark or not self.peer:
            return None
        return statistics.median(self.pulsark) / statistics.median(self.peer)

    @property
    def passed(self) -> bool:
        if self.failed:
            return False
        return self.ratio is None or self.measure.holds(self.ratio)

    def limit(self, broker: str) -> str:
        """What most runs of a side were limited by."""
        limits = Counter(usage.limit for usage in self.usage.get(broker, ()))
        return limits.most_common(1)[0][0] if limits else ""

    def as_json(self) -> dict[str, object]:
        return {
            "measure": self.measure.label,
            "unit": self.measure.unit,
            "better": self.measure.better,
            "pulsark": self.pulsark,
            "peer": self.peer_name,
            "peer_samples": self.peer,
            "ratio": self.ratio,
            "threshold": self.measure.threshold,
            "passed": self.passed,
            "failed": self.failed,
            "usage": {
                broker: [
                    {name: round(getattr(usage, name), 3) for name in Usage.__slots__}
                    | {"limit": usage.limit}
                    for usage in usages
                ]
                for broker, usages in self.usage.items()
            },
        }


def machine(data: Path) -> str:
    """One line about where the numbers were taken."""
    model = "unknown CPU"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    python = platform.python_version()
    return f"{os.cpu_count()} cores, {model}, {file_system(data)}, Python {python}"


def table(rows: list[Row]) -> str:
    """The comparison: medians, half of the spread in percent, ratio and what is needed."""
    peer = rows[0].peer_name if rows else ""
    header = f"{'median (spread)':<25}{'Pulsark':>13}{peer:>13}      {'ratio':>6}  {'needed':<8}"
    lines = [header, "-" * 80]
    for row in rows:
        verdict = "" if row.measure.threshold is None or row.ratio is None else _mark(row.passed)
        verdict = "FAIL" if row.failed else verdict
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        numbers = f"{_cell(row.pulsark):>13}{_cell(row.peer):>13} {row.measure.unit:<4}"
        line = f"{row.measure.label:<25}{numbers} {ratio:>6}  {row.measure.needed:<8} {verdict}"
        lines.append(line.rstrip())
    reasons = {f"{broker}: {why}" for row in rows for broker, why in row.failed.items()}
    lines += sorted(reason[:80] for reason in reasons)
    return "\n".join(lines)


def resources(rows: list[Row]) -> str:
    """Who used what in each scenario, in cores: a median a column, and what limited most runs."""
    names = ("broker", "broker_thread", "client", "others", "disk")
    lines = [
        f"{'cores used':<22}{'':<8}{'broker':>7}{'thread':>7}{'client':>7}{'others':>7}{'disk':>6}"
        "  limited by",
        "-" * 80,
    ]
    for row in rows:
        if row.measure.secondary:
            continue
        for broker, usages in row.usage.items():
            if not usages:
                continue
            columns = [
                statistics.median(getattr(usage, name) for usage in usages) for name in names
            ]
            numbers = "".join(f"{value:>7.2f}" for value in columns[:4])
            label = row.measure.label.removeprefix("publish ").removesuffix(", p50")
            line = f"{label:<22}{broker:<8}{numbers}{columns[4]:>6.0%}  {row.limit(broker)}"
            lines.append(line)
    return "\n".join([*lines, *_disturbance(rows)])


def _disturbance(rows: list[Row]) -> list[str]:
    others = [usage.others for row in rows for side in row.usage.values() for usage in side]
    if not others or statistics.median(others) < DISTURBED_CORES:
        return []
    share = statistics.median(others)
    return [f"\nDisturbed: other processes took {share:.1f} cores. Do not trust these numbers."]


def _mark(passed: bool) -> str:
    return "ok" if passed else "FAIL"


def _cell(samples: list[float]) -> str:
    """Median and half the distance of the extremes, in percent of the median."""
    if not samples:
        return "-"
    median = statistics.median(samples)
    text = f"{median:.0f}" if median >= 100 else f"{median:.3g}"
    if len(samples) == 1:
        return text
    spread = (max(samples) - min(samples)) / 2 / median if median else 0.0
    return f"{text} ±{spread:.0%}"
