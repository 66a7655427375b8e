"""The Delta log of a table on one storage root. Everything here blocks.

``delta_log`` reads and writes commits, ``root_log`` brings a root's log up to the record,
``folding`` turns old commits into a ``checkpoint``, ``log_sum`` computes the state that a log
describes, ``log_repair`` makes a log agree with the record again, ``time_travel`` lists the files
of a past version.

A commit is written under a temporary name, synced, and linked to its version: it is visible whole
or not at all.
"""
