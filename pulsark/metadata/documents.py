"""The format version that all JSON documents of the metadata store have."""

from __future__ import annotations

from typing import Any


def check_version(document: dict[str, Any], known: int) -> None:
    """Raise ``ValueError`` for a document of a newer format."""
    version = document["version"]
    if not 1 <= version <= known:
        raise ValueError(f"format {version}; this release knows up to {known}")
