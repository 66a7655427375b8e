"""Schemas, and which schema may follow which. Pure: bytes in, decisions out.

``dispatch.policies.schemas`` is the registry that stores them.
"""
