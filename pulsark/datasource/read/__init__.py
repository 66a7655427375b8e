"""Reading: ``spark.read`` and ``spark.readStream``.

``reader`` plans a batch, ``stream_reader`` a stream; ``admission`` limits a micro-batch. A task
reads a split from files (``file_rows``) or over Flight (``entry_stream``) and gives the rows the
columns of the query (``layout``, ``shape``, ``filters``). ``following`` moves a subscription along
with the stream. ``time_travel`` reads past versions, ``views`` shows topics and cursors as tables.

A task delivers its split complete and in order, or fails.
"""
