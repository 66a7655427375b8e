"""Compiled schemas of what the storage writes."""
