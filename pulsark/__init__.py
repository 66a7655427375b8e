"""Pulsark: publish-subscribe messaging whose topics are Delta tables."""

__version__ = "0.1.0"
