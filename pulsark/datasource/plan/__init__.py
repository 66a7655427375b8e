"""The driver's work before tasks run.

Start with ``plan``: pure arithmetic that turns offsets into splits, each of one or more spans of
ledgers. ``topics`` finds the topics of a query, and where each partition starts and ends.
``cursor_changes`` checks rows that change cursors; ``workers`` tunes Spark's Python workers.

Splits of a partition do not overlap and leave no entry out. The same offsets give the same splits.
"""
