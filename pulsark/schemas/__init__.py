"""Schemas, and which schema may follow which. Pure: bytes in, decisions out.

Start with ``definition``, a schema as clients send it, and ``parsed``, which checks it. ``avro``,
``protobuf`` and ``key_value`` parse the definitions. ``compatibility`` decides by one of the
``strategies`` whether a schema may follow others; ``avro_resolution`` decides whether data of one
Avro type can be read as another. ``columns`` shows a schema's values as columns of a table, and
``of_columns`` is its inverse.

``dispatch.policies.schemas`` stores schemas; nothing here does any I/O. Definitions come from
clients: each size, depth and number is bounded.
"""
