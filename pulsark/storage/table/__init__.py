"""A topic's table: sealed entries as rows in Parquet files, and the Delta log that lists them.

``record`` is what the metadata store knows, ``delta_log`` a root's log, ``attach`` the protocol
that makes files part of the topic, ``seal`` writes them and ``reader`` reads entries back. The
last two need pyarrow and run in a process of their own. ``docs/formats/table.md`` has the format.
"""
