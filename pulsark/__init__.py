"""Pulsark: publish-subscribe messaging whose topics are Delta tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pulsark.datasource.session import session

__version__ = "0.1.0"
__all__ = ["__version__", "session"]


def __getattr__(name: str) -> Any:
    """``pulsark.session`` on first use: the broker must not import Spark."""
    if name == "session":
        from pulsark.datasource.session import session

        return session
    raise AttributeError(f"module 'pulsark' has no attribute '{name}'")
