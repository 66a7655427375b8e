"""The calls of queries, jobs and notebooks to the broker's admin API.

Start with ``client``: it has one attribute for each resource, and turns failures into the errors of
the data source. Each resource has a module; its class ends in ``Calls``. ``partitions`` and
``table_files`` are parsed answers. The broker's routes are in ``admin.spark``.
"""
