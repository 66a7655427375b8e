"""Durable storage, from the journal up to a topic's table.

Rooms, bottom up: ``bookie`` stores entries on one disk; ``ledger`` writes a list of entries to
several bookies; ``cursor`` stores acknowledgements; ``managed_ledger`` joins ledgers into one
endless sequence; ``delayed`` stores when delayed messages are due; ``table`` stores sealed entries;
``backup`` copies a data directory.

Storage knows nothing of clients: it imports ``wire``, ``metadata``, ``schemas`` and ``rows``, never
``dispatch``.
"""
