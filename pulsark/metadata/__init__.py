"""The metadata store: small values under paths, with versions, ephemeral owners and watches.

Read ``store`` first: the contract, which every implementation passes (``tests/contracts``).
``sqlite`` is the store of a standalone; ``sqlite_file`` and ``wal`` check its file when it opens.
``memory`` is the store of simulations. ``resources`` has the typed documents: clusters and tenants,
``namespaces``, and in ``topic_resources`` partitioned topics. ``history`` detects a store that went
back to an earlier state.

A write names the version it replaces. A lost answer is not a failed write: only a definite refusal
undoes anything. Each value has a checksum.
"""
