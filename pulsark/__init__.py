"""Pulsark: publish-subscribe messaging whose topics are Delta tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pulsark.datasource.catalog import register_topics
    from pulsark.datasource.session import session

__version__ = "0.1.0"
__all__ = ["__version__", "register_topics", "session"]


def __getattr__(name: str) -> Any:
    """What is for Spark on first use: the broker must not import it."""
    if name == "session":
        from pulsark.datasource.session import session

        return session
    if name == "register_topics":
        from pulsark.datasource.catalog import register_topics

        return register_topics
    raise AttributeError(f"module 'pulsark' has no attribute '{name}'")
