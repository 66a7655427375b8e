"""Writing: ``df.write`` and ``df.writeStream``.

``sink`` is what Spark calls: tasks write ledgers as files (``topic_writers``), and the driver's
commit is one bulk publish per topic. ``sending`` publishes through the broker instead. ``outgoing``
turns columns into messages, ``typed_values`` turns them into values of a schema, ``routing`` finds
the partition of a key. ``cursor_writer`` writes to the view ``cursors``.
"""
