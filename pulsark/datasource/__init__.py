"""The PySpark data source ``pulsark``. Imports ``wire`` and ``storage.rows``, never ``dispatch``.

Nothing here is imported by the broker, and nothing here imports more than the standard library
and ``pyspark.sql.datasource`` before a query needs it.
"""

from pulsark.datasource.worker_noise import keep_out

keep_out()
