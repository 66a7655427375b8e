"""The stored part of delayed delivery: which messages are due when, in buckets.

``delayed_buckets`` stores a topic's buckets in ledgers; ``delayed_pages`` is the format of their
keys. The index is a hint: the broker checks the entry's own time before it delivers it.
"""
