"""What the driver does before tasks run.

``topics`` finds the topics of a query and where they start and end, ``plan`` cuts ledgers into
splits (pure arithmetic).
"""
