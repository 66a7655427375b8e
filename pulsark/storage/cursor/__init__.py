"""Cursors: what each subscription has acknowledged, and the log that stores it.

Start with ``state``, which is pure: a mark-delete position, acknowledged entries above it and the
masks of batches (``batch_masks``). ``cursor`` is one subscription's handle. All cursors of a bundle
share one log: ``log`` takes changes, ``bundle_cursors`` is their state in memory, ``log_writer``
writes groups of changes and starts a new ledger when the old one is long, ``bundle_record`` names
the current ledger. ``division`` makes the cursors of a bundle those of its parts. ``history`` reads
old ledgers, for queries about the past.

Acknowledgements merge in any order and any number of times, so a snapshot may be taken while they
arrive.
"""
