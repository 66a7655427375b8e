"""A ledger: a list of entries with one writer and copies on several bookies.

``manager`` creates, opens, reads and deletes ledgers; ``writer`` appends to one and confirms an
entry once the ack quorum has it; ``recovery`` finds the end of a ledger whose writer is gone (its
docstring has the proof); ``metadata`` is the ledger's document in the metadata store; ``bookies``
chooses bookies for the copies, as ``placement`` decides; ``sealed_through`` says up to which entry
a table has the ledger.

Entries are confirmed in order. Recovery fences a ledger first, so that its former writer confirms
nothing more.
"""
