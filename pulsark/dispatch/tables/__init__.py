"""Topics as tables: when entries are sealed, and how tables are maintained.

Start with ``sealing``: it seals the entries that ``sealing_due`` (pure) names. ``rounds`` looks at
all loaded topics, ``progress`` knows how far each is sealed, and ``journal_release`` lets bookies
forget sealed entries. ``table_waits`` has temporary states: leases of jobs, and tables that are
read, crowded or to be tidied. ``sealing_jobs`` lets a Spark job write the files instead.

``tidying`` merges and deletes files, ``table_retention`` trims tables, ``erasure`` removes messages
from them, ``bulk_publishing`` adds staged files to topics, ``sealed_copies`` copies files to roots
that lack them, and ``repairs`` restores damaged tables.

One broker commits to a table (``topics.topic_tables``). The owner of another partition calls it by
``far_tables``, and ``attach_for_others`` answers. For a bulk publish, it calls the owners of other
partitions by ``far_partitions``, and ``reserved_for_others`` answers. To erase or repair, it asks
all owners by ``everywhere``, and ``part_works`` answers.
"""
