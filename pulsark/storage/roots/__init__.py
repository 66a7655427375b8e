"""The files of a storage root: a directory, or a prefix of an object store that speaks S3.

Read ``root_files`` first: the operations that tables need. A disk has them; ``object_files`` has
them over obstore; ``any_root`` chooses by the path, and imports obstore when the first path is in
an object store. ``options`` says how a store is reached, ``store_pause`` when one that failed is
asked again, ``disk_source`` gives a file to pyarrow, ``task_files`` is for Spark's processes.

A put whose answer is lost is decided by reading again; no name is written twice with different
content, but for hints that readers can do without. Credentials are in the environment or a file,
and nowhere else: not in paths, plans, logs or metadata.
"""
