"""What applies to a topic: policies, schemas, permissions.

``policies`` computes a topic's policies from its own, its namespace's and the broker's settings;
``schemas`` keeps the versions of a topic's schema; ``grants`` keeps the permissions of roles.
"""
