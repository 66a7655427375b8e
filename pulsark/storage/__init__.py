"""Durable storage: journal, bookies, ledgers, managed ledgers, cursors.

Imports ``pulsark.wire``, ``pulsark.metadata`` and the top-level modules, never
``pulsark.dispatch`` or anything above it.
"""
