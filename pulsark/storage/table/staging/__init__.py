"""Files prepared for a bulk publish, by the broker or by Spark's tasks.

``bulk_writer`` writes the messages of one partition in their order; ``staged_ledger`` has the names
and the description of such files; ``staged_merge`` makes few files of many.

A staged file is not part of a topic until a bulk publish names it. If none does, it is deleted
after a day.
"""
