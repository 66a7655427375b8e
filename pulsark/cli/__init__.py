"""The command line: ``pulsark standalone``, ``produce``, ``consume``, ``topics`` and others.

Each command imports what it needs when it runs: `pulsark version` must be quick, and the
broker's process must not carry what only prints tables.
"""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the command of ``sys.argv`` and exit: 0 done, 1 failed, 2 wrong usage."""
    from pulsark.cli.app import run

    run()
