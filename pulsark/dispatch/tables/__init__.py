"""Topics as tables: when entries are sealed, and how tables are maintained.

Read ``sealing`` first: it seals what ``sealing_due`` (pure) says is due of one table. ``rounds``
looks at loaded topics, and ``progress`` knows how far each is; ``journal_release`` tells bookies.
``table_waits`` has what holds for a while only: leases of jobs, tables that are read, crowded, or
to be tidied. Which table a topic has is known in ``topics.topic_tables``; if another broker has it,
``far_tables`` asks that one, where ``attach_for_others`` answers.

``sealing_jobs`` lets a Spark job write the files instead. ``tidying`` merges and deletes files,
``table_retention`` trims tables, ``erasure`` removes messages from them, ``bulk_publishing`` takes
staged files into topics: of partitions of other brokers it asks these by ``far_partitions``, where
``reserved_for_others`` answers. ``sealed_copies`` copies files to roots that lack them, and
``repairs`` makes tables whole again.
"""
