"""What the driver does before tasks run.

``admin_client`` asks the broker, ``topics`` finds the topics of a query and their ends, ``plan``
cuts ledgers into splits (pure arithmetic), ``table_files`` has the files of sealed ranges.
"""
