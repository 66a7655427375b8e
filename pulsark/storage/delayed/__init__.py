"""The stored index of delayed delivery: when each message of a topic is due.

``delayed_buckets`` stores a topic's index as buckets in ledgers, and merges them.
``delayed_pages`` is their format: pages of positions in the order of time.

The index is derived from the messages: the time in the entry decides. If a bucket is lost, its
messages are read again; a superfluous bucket is harmless. A topic's subscriptions share one index.
"""
