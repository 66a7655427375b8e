"""``pulsark`` that collects reference cycles early, so that growth behind them is a leak.

A broker leaves cycles alone until memory has grown by 256 MiB; a fuzzer allows 64 in all.
"""

from __future__ import annotations

from pulsark.cli import main
from pulsark.dispatch.loop import garbage

if __name__ == "__main__":
    garbage.GROWTH_BYTES = 16 << 20
    main()
