"""``python -m pulsark`` whose tables are written at once, although others want the processors.

A table process takes what is left of them, and other tests leave nothing: what a broker seals by
itself would come five seconds later, or a minute with an object store, and then be done again. For
tests of something else than that.
"""

from __future__ import annotations

from pulsark.cli import main
from pulsark.storage.table.process.process import TableProcess

HURRIED = {"PULSARK_TEST_MAIN": "-m tests.support.hurried"}
"""For the environment of a ``Standalone``."""

if __name__ == "__main__":
    urgent = property(lambda process: "urgent", lambda process, priority: None)
    TableProcess.priority = urgent  # type: ignore[assignment]
    main()
