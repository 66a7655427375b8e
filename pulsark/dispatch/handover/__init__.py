"""Passes a client's socket from the process that accepted it to the broker that the client wants.

All brokers of a machine accept connections on the shared port. The client's CONNECT command names
a broker as the target of a proxy. Start with ``lobby``: it peeks at CONNECT without consuming it.
``wanted`` parses the peeked bytes (pure), ``sender`` passes the socket to another process, and
``receiver`` takes it there. That process reads the connection from its first byte.

Nothing is answered before the handover, so each broker authenticates its own clients. Afterwards no
other process sees the connection. If the broker dies during the handover, the connection closes,
and the client looks its topic up again. A process keeps a bounded number of waiting clients.
"""
