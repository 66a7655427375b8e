"""A managed ledger: the ledgers of one topic partition as one sequence.

Read ``states`` first: the states of the last ledger, and what appends do in each.
``managed_ledger`` appends and reads, and assembles the other modules. ``last_ledger`` opens,
closes, rolls over and recovers the last ledger; ``changes`` serialises changes; ``append_queue``
has appends that wait for a writer. ``owned_record`` saves the ``record``; ``ledger_list`` does
arithmetic on its ledgers, ``view`` reads them. ``reservation`` adds ledgers at the end that were
written elsewhere, and ``reservations`` does so in several partitions. ``retention`` decides what to
delete, ``trimming`` and ``deletion`` delete it; ``folding`` and ``ledger_runs`` keep the record of
an old topic small. ``compaction``, ``compacted_ledger`` and ``compacted_form`` keep the last
message of each key; ``erasure`` computes the rest of an erased entry.

No ledger follows another whose end is unknown. A restart opens a new ledger: no position is used
twice.
"""
