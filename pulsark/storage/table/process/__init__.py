"""Table processes: workers that import pyarrow, so that the broker need not.

``process`` is the broker's side: it starts a worker with the first request and ends it when it is
idle. ``worker`` is the other side, ``pipe`` their protocol. ``table_processes`` lets sealing yield
the processors to clients; ``reader`` with ``block_cache`` reads entries back.

A worker answers a failed request with the error. When a worker dies, its requests fail, and the
next request starts another, after a pause if such requests ended workers before (``restarts``).
"""
