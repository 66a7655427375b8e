"""The binary protocol without sockets: bytes in, commands and entries out.

``frames`` cuts the stream into commands and entries and writes both; ``entry`` is what is stored:
checksum, metadata, payload; ``batch`` and ``compression`` open a payload, which the broker does
only for its own tools and Spark; ``topic_name``, ``hashes``, ``message_id`` and ``ack_set`` are
the values that commands carry. ``pulsar.proto`` is the schema of all commands.

What a peer sent raises only ``ProtocolError`` here (``ClientError`` for names), and a size that a
peer claims is checked against a limit before it is used.
"""
