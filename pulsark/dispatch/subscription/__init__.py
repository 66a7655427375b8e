"""Subscriptions: which consumer gets an entry, and when it is delivered again.

Start with ``subscription``, which puts the parts together. ``dispatcher`` sends entries: ``reader``
knows where to read, ``storage_read`` and ``read_buffer`` bring entries into memory, ``deliveries``
counts what goes out. ``pending`` has what consumers were sent and did not acknowledge,
``acknowledgements`` and ``seeking`` move the cursor. ``subscription_types`` names the types;
``exclusive``, ``failover``, ``shared`` and ``key_shared`` decide, without I/O. ``replay_queue`` has
the entries to be delivered again, ``delayed_tracker`` and ``delayed_entries`` those that are
delayed. ``non_persistent_subscription`` delivers an entry at once or drops it.

An acknowledged entry is not delivered again. An unacknowledged one is, once its consumer is gone.
"""
