"""One topic partition: it stores entries, delivers them, and decides what to keep.

``topic`` stores entries in a managed ledger and serves its subscriptions from ``cache``;
``ledger_reports`` hears what became of entries, ``cursors`` keeps what is acknowledged.
``non_persistent_topic`` stores nothing. ``backlog`` enforces quotas, ``retention`` trims,
``compactor`` keeps the last message of each key, ``arrivals`` knows the age of messages by the
broker's clock, ``last_message`` finds the last one that can be delivered, ``message_count`` counts
messages for Spark.
"""
