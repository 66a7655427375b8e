"""Payloads as values with the types of their schema, and back.

``arrow_type_of`` and ``decode_values`` are for whoever shows values. ``ValueColumn`` is the column
of a table, from which every payload can be made again byte for byte.
"""

from pulsark.storage.rows.values.codec import arrow_type_of, decode_values
from pulsark.storage.rows.values.column import ValueColumn

__all__ = ["ValueColumn", "arrow_type_of", "decode_values"]
