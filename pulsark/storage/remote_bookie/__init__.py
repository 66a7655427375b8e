"""A bookie in another process of this machine, behind a Unix socket.

Read ``protocol`` first: frames as bytes in and frames out, without sockets. ``messages`` encodes
their contents; an add carries a record of the journal unchanged. ``server`` serves an embedded
bookie to the processes of its user, and ``served`` is one of its connections. ``remote``
implements the contract ``Bookie`` for a broker over two ``channel``s, one for writes and one for
reads, so that a large read does not delay adds.

Adds are answered in order and together: one small frame after each sync. When a connection ends,
every unanswered add on it has failed: it may be stored or not, as after any error. A channel is
bound to one instance of a bookie; another instance of the same name is another bookie, and is
refused.
"""
