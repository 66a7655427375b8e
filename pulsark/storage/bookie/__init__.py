"""A bookie: entries of many ledgers in one journal on one disk.

Read ``bookie`` first: the contract between a ledger and its bookies. ``embedded`` implements it
with ``journal`` (group commit: one turn of the loop is one record, one write, one sync) and
``index`` (the place of each entry). ``entry_reads`` finds and reads entries, ``journal_end`` closes
the journal behind its last group, and ``upkeep`` runs checkpoints and garbage collection. At a
start, ``journal_recovery`` builds the index from
``index_checkpoint`` and the segments after it; ``segment_scan`` tells a torn tail from damage.
``journal_gc`` deletes unused segments. ``fleet`` opens all bookies of a process, ``claims`` checks
that they belong to the metadata store.

A bookie answers an append after its sync, never before. A failed sync is never retried: the journal
stops, and a new segment begins. Unreadable data is an error; it is never reported as absent.
"""
