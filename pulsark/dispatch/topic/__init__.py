"""One topic partition: it stores entries, delivers them, and decides what to keep.

``topic`` ties the parts together. ``entries`` reads, from ``cache`` or from storage, and
``compacted_view`` reads what ``compactor`` left; ``last_message`` finds the last one that can be
delivered. ``ledger_reports`` hears what became of published entries. ``subscriptions`` creates and
deletes subscriptions, ``cursors`` keeps what they acknowledged. ``backlog`` enforces quotas,
``retention`` trims, ``termination`` ends a topic, ``arrivals`` knows the age of messages by the
broker's clock, ``message_count`` counts messages for Spark. ``non_persistent_topic`` is the other
kind: it stores nothing.
"""
