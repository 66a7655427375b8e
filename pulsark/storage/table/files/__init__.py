"""The files of a table, and their record.

``record`` is the table's document in the metadata store; ``seal`` writes entries as Parquet files
and checks them; ``root_files`` copies and removes files on one root; ``seal_range`` and ``merging``
decide which entries share a file; ``orphans`` finds files of interrupted attempts;
``disk_reserve`` leaves room for publishing. ``table_limits`` has the sizes.

``seal`` needs pyarrow, so a broker never imports it; its table processes do.
"""
