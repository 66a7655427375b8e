"""Backup of a standalone's data directory while it runs, and restore.

``make`` copies the state of one moment: first the metadata store, then each journal up to the end
that ``journal_cut`` finds for that moment, then tables (``table_files``). ``copier`` copies and
syncs, ``manifest`` lists the files with their checksums, ``restore`` checks the list and copies the
files back. ``data_dir`` knows the layout of a data directory, and locks it.

A backup is complete only if it has its manifest, which is written last. Making one takes no lock
and never changes the data directory.
"""
