"""Apache BookKeeper's binary protocol, version 2, and what its bookies store. No sockets here.

``digests`` has the check values of entries and the keys of ledgers, ``entries`` the stored form of
an entry, ``requests`` and ``answers`` the frames of each direction. A frame is a length of four
bytes and so many bytes; all numbers are big-endian.

A bookie checks nothing of an entry but its ledger's key: wrong bytes are stored and confirmed. So
an entry is encoded once for all its copies, and checked whenever it is read.
"""
