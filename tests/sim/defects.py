"""Defects of a broker that its clients cannot tell from refusals."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from pulsark.dispatch.loop import defects


@contextmanager
def no_defects() -> Iterator[None]:
    """A request that ends with an unexpected error is answered like a refusal, so look for it."""
    found: list[logging.LogRecord] = []

    def collect(record: logging.LogRecord) -> bool:
        found.append(record)
        return True

    log = logging.getLogger(defects.__name__)
    level = log.level
    log.setLevel(logging.ERROR)  # whoever runs many seeds wants nothing else of the broker's log
    log.addFilter(collect)
    try:
        yield
    finally:
        log.removeFilter(collect)
        log.setLevel(level)
    assert not found, logging.Formatter().format(found[0])
