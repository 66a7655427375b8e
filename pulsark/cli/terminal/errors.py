"""Errors that end a command with one line and exit code 1."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pulsark.errors import PulsarkError


class CommandError(Exception):
    """The command cannot be done; ``str(e)`` tells the user why, and the cure."""


@contextmanager
def ends_in_one_line() -> Iterator[None]:
    """Turn what may go wrong into one line on stderr and exit code 1. A bug keeps its trace."""
    try:
        yield
    except (CommandError, PulsarkError) as error:
        print(f"pulsark: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output has left, as `| head` does. What Python would still flush
        # at its end has nowhere to go.
        sys.stderr.close()
        sys.exit(1)
