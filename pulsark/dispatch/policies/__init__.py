"""What applies to a topic: policies and schemas.

``policies`` computes a topic's policies from its own, its namespace's and the broker's settings;
``schemas`` keeps the versions of a topic's schema.
"""
