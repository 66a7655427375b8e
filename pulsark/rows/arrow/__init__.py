"""Arrow arrays, fields and schemas from which ``rows`` and ``rows.values`` build their batches."""
