"""A bookie in another process of this machine, behind a Unix socket.

Read ``protocol`` first: it turns bytes into frames and back, without sockets. ``messages`` encodes
the bodies of frames; an add carries a record of the journal unchanged. In the bookie process,
``server`` serves an embedded bookie, and ``served`` is one of its connections. In a broker,
``remote`` implements the contract ``Bookie``. It has two ``link``s, one for writes and one for
reads, so that a large read does not delay adds. A link replaces its ``channel`` when that breaks.

Adds are acknowledged in order, with one small frame after each sync. When a connection ends, every
unacknowledged add on it has failed: as after any error, the entry may be stored or not. A channel
accepts only one instance of a bookie, because another instance of the same name has other entries.
"""
