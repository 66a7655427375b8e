"""Files prepared for a bulk publish, by the broker or by Spark's tasks.

``bulk_writer`` writes the messages of one partition; ``staged_ledger`` has the names and the
description of such files. A file is not part of a topic before a bulk publish names it.
"""
