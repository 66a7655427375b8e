"""``pulsark`` that collects reference cycles early, so that growth behind them is a leak.

A broker leaves cycles alone until memory has grown by 256 MiB; a fuzzer allows 64 in all. SIGUSR1
makes it collect at once, for who measures.
"""

from __future__ import annotations

import signal

from pulsark.cli import main
from pulsark.dispatch.loop import garbage
from pulsark.runtime import collect

if __name__ == "__main__":
    garbage.GROWTH_BYTES = 16 << 20
    signal.signal(signal.SIGUSR1, lambda *_: collect())
    main()
