"""The producers of a topic: who may publish, and which messages are duplicates.

``topic_producers`` admits producers, shared or exclusive. ``deduplication`` stores a message once
even if its producer sends it again; ``sequences`` is its table of sequence ids, and
``deduplication_switch`` follows the policy.

A producer's entries are stored in the order of their arrival, or its connection is told to start
over.
"""
