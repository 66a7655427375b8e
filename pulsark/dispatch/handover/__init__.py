"""Clients of a port that several brokers of one machine share get to the one that they ask for.

A client that was told to reach a broker by the address that it knows already says in CONNECT which
broker it means. Whoever accepted the connection looks at CONNECT without reading it (``lobby``),
and gives the socket to that broker's process (``sender``), which reads it from its first byte on
(``receiver``): from then on nothing passes a second process. So nobody has answered anything, and
each broker lets its clients in itself. A client whose broker dies meanwhile sees its connection
end, and looks its topic up again.
"""
