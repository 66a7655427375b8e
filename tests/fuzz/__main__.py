"""``python -m tests.fuzz``: hostile clients on all three ports of a broker of their own."""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
from pathlib import Path

from tests.fuzz.live import LiveFuzz


def main() -> int:
    """Run until the frames or the hours are over; 1 if something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000, help="send so many frames")
    parser.add_argument("--hours", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--seed", type=int, default=None, help="make the same clients again")
    parser.add_argument("--ping-p99-ms", type=float, default=50.0, help="allowed for others")
    parser.add_argument(
        "--secured", action="store_true", help="with TLS, logins by token, and rights"
    )
    given = parser.parse_args()
    seed = secrets.randbelow(2**32) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="pulsark-fuzz-"))
    fuzz = LiveFuzz(folder, seed, lambda line: print(line, flush=True), secured=given.secured)
    found = fuzz.run(given.frames, given.hours * 3600, given.ping_p99_ms)
    print(found.to_json())
    for problem in found.problems:
        print(f"- {problem}")
    print(f"data and log: {folder}" if found.problems else "nothing found")
    return 1 if found.problems else 0


if __name__ == "__main__":
    sys.exit(main())
