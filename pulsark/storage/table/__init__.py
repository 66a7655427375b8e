"""A topic's table: sealed entries as rows in Parquet files, on one or more storage roots.

Read ``attach`` first: the protocol that makes files part of a topic, once, on all roots. Rooms
below: ``files`` (the record in the metadata store, and writing the files of a root), ``log`` (the
Delta log of a root), ``process`` (processes that read and write Parquet), ``staging`` (files that
Spark prepares). Modules here: ``tables`` (all tables of a broker), ``open_tables``, ``table`` (one
table, with ``attach``, ``owned_table_record`` and ``table_logs``), ``bulk_publish`` with
``publishing`` and ``publishes``, ``roots`` with ``root_identity``, ``repair`` (fills a root from
another one), ``table_repair`` (after another engine wrote to the table), ``tables_to_delete`` and
``unnamed_files`` (what can be deleted).

The record decides, the logs follow: the record gives each commit its version. Tidying never deletes
a file that a commit names.
"""
