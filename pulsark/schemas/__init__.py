"""What schemas are and which may follow which. Pure: bytes in, decisions out.

The registry that keeps them is ``dispatch.schemas``.
"""
