"""Pulsark: publish-subscribe messaging whose topics are Delta tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pulsark.datasource.catalog import register_topics, table
    from pulsark.datasource.read.listener import QueryListener
    from pulsark.datasource.session import session

__version__ = "0.1.0"
__all__ = ["QueryListener", "__version__", "register_topics", "session", "table"]


def __getattr__(name: str) -> Any:
    """What is for Spark on first use: the broker must not import it."""
    if name == "session":
        from pulsark.datasource.session import session

        return session
    if name == "QueryListener":
        from pulsark.datasource.read.listener import QueryListener

        return QueryListener
    if name in ("register_topics", "table"):
        from pulsark.datasource import catalog

        return getattr(catalog, name)
    raise AttributeError(f"module 'pulsark' has no attribute '{name}'")
