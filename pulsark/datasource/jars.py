"""``python -m pulsark.datasource.jars``: download the jars of Delta once, to work offline."""

from __future__ import annotations

import sys

from pulsark.datasource.session import delta_jars, ivy_dir, session
from pulsark.errors import ConfigError


def main() -> int:
    """Fetch what is missing by starting a Spark session; the exit code."""
    directory = ivy_dir() / "jars"
    if not all((directory / name).is_file() for name in delta_jars()):
        try:
            session("pulsark-jars", config={"spark.ui.enabled": "false"}).stop()
        except ConfigError as error:
            print(error, file=sys.stderr)
            return 1
    for name in delta_jars():
        print(directory / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
