"""The PySpark data source ``pulsark``. It and the broker never import each other.

``source`` is what Spark calls: ``options`` checks the query, ``plan`` cuts topics into splits,
``read`` and ``write`` run the tasks. ``session`` builds a Spark session with the jars it needs.

Before a query needs more, only the standard library and ``pyspark.sql.datasource`` are imported.
"""
