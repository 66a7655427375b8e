"""Calls between the brokers of a cluster, over their admin APIs.

Start with ``peers``: it makes signed calls and verifies those of others. ``http_call`` is one
request, ``whereabouts`` says which broker serves a topic, and ``topics_elsewhere`` has the calls
for topics that another broker serves. Nothing here is imported by a broker that is alone.

A broker calls only brokers that the registry lists. The receiver of a call never forwards it. An
answer is streamed to the client, whatever its size. A call ends when the peer is silent for
``adminForwardTimeoutSeconds``, or when its caller is cancelled.
"""
