"""Payloads as values typed by their schema, and back.

``arrow_type_of`` and ``decode_values`` serve code that shows values. ``ValueColumn`` is a table's
column: every payload can be rebuilt from it byte for byte.
"""

from pulsark.rows.values.codec import arrow_type_of, decode_values
from pulsark.rows.values.column import ValueColumn

__all__ = ["ValueColumn", "arrow_type_of", "decode_values"]
