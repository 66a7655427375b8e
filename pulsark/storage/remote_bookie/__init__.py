"""A bookie in another process of this machine, behind a Unix socket.

Read ``protocol`` first: frames as bytes in and frames out, without sockets. ``messages`` has what
is in them; an add carries a record of the journal as it is. ``server`` serves an embedded bookie to
the processes of its user; ``served`` is one connection of it. ``remote`` implements the contract
``Bookie`` for a broker over two ``channel``s, one for writes and one for reads, so that a large
read holds up no add.

Answers to adds come in order and together: one small frame after each sync. When a connection ends,
every add on it that was not answered has failed: it may be stored or not, as after any error. A
channel is bound to one instance of a bookie; another one under the same name is another bookie, and
is never spoken to.
"""
