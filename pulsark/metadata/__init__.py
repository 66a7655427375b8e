"""The metadata store: small values under paths, with versions, ephemeral owners and watches.

Read ``store`` first: the contract, which every implementation passes (``tests/contracts``).
``changes`` are what one commit consists of: it makes all of them, or none. ``pages`` goes through
the children of a path however many there are. ``settled`` repeats a write of unknown outcome.
``sqlite`` is the store of a standalone; ``sqlite_writes`` has what a transaction does to its file,
and ``sqlite_file`` and ``wal`` check the file when it opens.
``sqlite_shared`` is the one of several processes on one file, and ``sqlite_sessions`` what they do
to it. ``session``: how long what a process has for its session is certainly its own.
``guarded`` is a view of a store that writes only while a bundle is owned.
``memory`` is the store of simulations. ``resources`` has the typed documents: clusters and tenants,
``namespaces``, and in ``topic_resources`` partitioned topics. ``history`` detects a store that went
back to an earlier state.

A write names the version it replaces, and versions of a path never repeat. A lost answer is not a
failed write: only a definite refusal undoes anything. Each value has a checksum.
"""
