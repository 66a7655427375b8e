"""Pulsar's binary protocol on a socket.

Start with ``server``, which accepts connections, and ``connection``, which reads frames and writes
answers. ``handlers`` maps each command to a function (``producer_commands`` and others).
``intake`` decides whether the socket is read, and ``reading`` has the states of that decision.
``keep_alive`` detects dead clients; ``pending_requests`` bounds unanswered requests;
``addresses`` says where ports listen. Topics and subscriptions know a connection as
``model.client.Client``.

No coroutine of a connection is the only owner of anything. A connection with too many unanswered
publishes is not read.
"""
