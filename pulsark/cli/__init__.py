"""The command line: ``pulsark standalone``, ``produce``, ``consume``, ``topics`` and others.

Each command imports its modules when it runs: `pulsark version` must be quick, and a broker's
process must not load the 14 MiB of the full command line. So commands that serve read their own
options (``serving``); all else goes to the full command line (``app``).
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command of ``sys.argv`` and exit: 0 done, 1 failed, 2 wrong usage."""
    from pulsark.cli.terminal.errors import ends_in_one_line
    from pulsark.cli.terminal.streams import escape_output, hide_secret_arguments
    from pulsark.private_files import create_privately

    hide_secret_arguments()
    escape_output()
    if sys.argv[1:2] != ["jobs"]:  # a job's output belongs to whom the user's umask says
        create_privately()
    with ends_in_one_line():
        match sys.argv[1:2]:
            case ["standalone"]:
                from pulsark.cli.standalone import standalone

                standalone(sys.argv[2:])
            case ["broker"]:
                from pulsark.cli.broker import broker

                broker(sys.argv[2:])
            case ["cluster"]:
                from pulsark.cli.broker import cluster

                cluster(sys.argv[2:])
            case _:
                from pulsark.cli.app import app

                app(prog_name="pulsark")
