"""Ledgers on a cluster of Apache BookKeeper: its bookies, and its metadata in ZooKeeper.

Bookies, auto-recovery and the shell are BookKeeper's, unchanged; this room is a client. ``nodes``
reads and writes a ledger's metadata, ``paths`` has their places, ``ids`` makes ledger ids, and
``ledger_store`` puts them together as a ``LedgerStore``. ``bookie`` implements the contract
``Bookie`` over TCP with two ``channel``s; ``registry`` follows which bookies there are.

Others change our metadata: auto-recovery replaces lost bookies in all segments but the last of an
open ledger, and closes one that lost a bookie too long ago. So every change is decided again about
what is read after a conflict, and keeps what is not ours.
"""
