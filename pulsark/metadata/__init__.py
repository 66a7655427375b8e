"""The metadata store: small values under paths, with versions, ephemeral owners and watches.

Read ``store`` first: the contract that every implementation passes (``tests/contracts``).
``changes`` are the parts of an atomic commit, ``pages`` lists many children, ``settled`` repeats a
write of unknown outcome. ``session`` says how long a session certainly lives, ``guarded`` allows
writes only while a bundle is owned, ``history`` detects a store that went back to an earlier state.

``sqlite`` is the store of one process: ``sqlite_writes`` has its transactions, ``sqlite_file`` and
``wal`` check the file. ``sqlite_shared`` lets several processes use one file; ``sqlite_sessions``
has their sessions. ``memory`` is for simulations. ``resources``, ``namespaces`` and
``topic_resources`` are typed documents, and ``paths`` says where each is.

A write names the version it replaces, and versions of a path never repeat. A lost answer is not a
failed write: only a definite refusal undoes anything. Each value has a checksum.
"""
