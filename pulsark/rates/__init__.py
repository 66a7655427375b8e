"""Rates: how much may happen in a period, and which connections wait after too much.

Start with ``bucket``, the token bucket of every rate. ``publish_limit`` has the two buckets of a
publish rate; both are pure arithmetic. ``throttle`` is the queue of the connections that wait for
one rate, and ``holding`` measures for how long there has been such a queue.
"""
