"""How much of something may happen in a time, and who waits when it was too much.

Start with ``bucket``: the token bucket in which all rates are kept. ``publish_limit`` is what one
rate of publishes comes to; both are arithmetic alone. ``throttle`` adds the line of those who wait,
and ``holding`` for how long there is one.
"""
