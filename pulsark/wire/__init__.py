"""The binary protocol without sockets: bytes in, commands and entries out.

Only ``ProtocolError`` leaves this package because of what a peer sent (``ClientError`` for
names), and no size that a peer claims is believed before it is compared with a limit.

``frames`` cuts the stream into commands and entries and writes both; ``entry`` is what is
stored: checksum, metadata, payload; ``batch`` and ``compression`` open a payload, which the
broker does for nobody but its own tools and Spark; ``topic_name``, ``hashes``, ``message_id``
and ``ack_set`` are the values that commands carry. ``pulsar.proto`` is the schema of them all.
"""
