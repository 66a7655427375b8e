"""Pulsar's binary protocol on a socket.

Start with ``server``, which accepts connections, and ``connection``, which assembles the parts of
one. ``command_turns`` cuts bytes into commands and carries out as many as one turn allows;
``handshake`` comes first, then ``handlers`` maps each command to a function
(``producer_commands`` and others), and ``sends`` publishes. ``output`` has the bytes that wait for
the socket. ``opened`` has what the client can name, and ``served_client`` is what topics and
subscriptions know of it (``model.client.Client``). ``intake`` decides whether the socket is read,
and ``reading`` has the states of that decision. ``keep_alive`` detects dead clients;
``pending_requests`` bounds unanswered requests; ``addresses`` says where ports listen. ``login``
and ``guard`` check clients and commands, ``revocation`` closes what a role may no longer have, and
``scalable_client`` serves clients of Pulsar 5.

No coroutine of a connection is the only owner of anything. A connection with too many unanswered
publishes is not read.
"""
