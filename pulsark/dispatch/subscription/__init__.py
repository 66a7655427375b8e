"""Subscriptions: which consumer gets an entry, and when it is delivered again.

Start with ``subscription``: it has a cursor, consumers and a type. ``subscription_types`` names
the types; ``exclusive``, ``failover``, ``shared`` and ``key_shared`` decide, without I/O.
``dispatcher`` carries out their decisions: it reads ahead, respects permits and sends to
consumers. ``replay_queue`` has the entries to be delivered again, ``delayed_tracker`` and
``delayed_entries`` those that are delayed. ``non_persistent_subscription`` delivers an entry at
once or drops it.

An acknowledged entry is not delivered again. An unacknowledged one is, once its consumer is gone.
"""
