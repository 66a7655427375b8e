"""``python -m pulsark`` with a broker that compacts only topics of very few keys by itself."""

from __future__ import annotations

from pulsark.cli import main
from pulsark.storage.managed_ledger import compaction

KEYS_MAX = 100

if __name__ == "__main__":
    compaction.COMPACTION_KEYS_MAX = KEYS_MAX
    main()
