"""Arrow arrays, fields and schemas from which ``rows`` and ``rows.values`` build their batches.

``schema`` has the columns of a message and ``field_ids`` numbers them for files. ``arrays`` makes
arrays in few passes, and ``fields`` reads Protobuf fields of many messages together with numpy.
"""
