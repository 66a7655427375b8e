"""What a query, a job or a notebook asks of the broker's admin API.

``client`` has the errors of the data source and one attribute for each resource, which has a
module. ``partitions`` and ``table_files`` are what the broker says of a topic. The routes are in
``admin.spark``.
"""
