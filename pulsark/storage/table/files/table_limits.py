"""How much of a table is done at a time, and how large what is known of it may become."""

from __future__ import annotations

from dataclasses import dataclass

from pulsark.metadata.store import MAX_VALUE_BYTES

FILES_PER_ATTACH_MAX = 500
"""An intent is one value of the metadata store, which may have 1 MiB."""

FILES_PER_PUBLISH_MAX = 3000
"""Files of a bulk publish; above the number before they have no statistics of columns."""


@dataclass(frozen=True, slots=True)
class TableLimits:
    """Defaults are what brokers use; tests set them small."""

    files_per_attach: int = FILES_PER_ATTACH_MAX
    files_per_publish: int = FILES_PER_PUBLISH_MAX
    files_per_step: int = 400
    """Files of a ledger that one attach merges into one, or takes out of the table."""
    files_merged: int = 10
    """Consecutive files of an open ledger that become one."""
    files_of_open_ledger: int = 200
    """Above it they are merged although some are much larger than others."""
    files_of_ledger: int = 3000
    """That it has, or had within the time for which such files are kept: with more it is closed, so
    that its document does not grow any more."""
    commits_folded: int = 1000
    """Old commits that a log has at least before they are folded into a checkpoint."""
    commits_deleted: int = 1000
    """At a time: each costs a sync of the log's directory."""
    published_in_record: int = 100
    """Bulk publishes that the table record lists before they go to a document of their own."""
    published_least: int = 1000
    """Origins of publishes that are remembered however old they are."""
    published_most: int = 10_000
    """Origins that are remembered at most: what is more is refused."""
    document_bytes: int = MAX_VALUE_BYTES
    """Size of a sealed ledger's document, and of the table record: the store takes no more."""
    files_a_turn: int = 64
    """Files that are looked at, copied or removed by one job of the thread that tables share."""
    bytes_a_turn: int = 64 << 10
    """Bytes of documents that are read before the event loop does other work."""


DEFAULT_LIMITS = TableLimits()
