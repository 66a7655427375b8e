"""The policies and schemas of topics.

``policies`` computes a topic's effective policies: its own, else its namespace's, else the broker's
setting. It is pure; ``dispatch.topics.policy_source`` reads them. ``schemas`` is the registry of
schemas in numbered versions, which the partitions of a topic share. It compares large schemas in a
thread.

A version of a schema never changes, and no schema gets a version before it was compared with those
that its topic's strategy names.
"""
