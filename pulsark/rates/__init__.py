"""Rate limits, and the connections that wait because of them.

Start with ``bucket``, the token bucket of every rate. ``publish_limit`` has the two buckets of a
publish rate, for messages and bytes. ``throttle`` is the queue of the connections that wait for one
rate; ``holding`` measures how long there has been such a queue. All but ``throttle`` are pure.
``dispatch.subscription.throttle`` limits deliveries with the same buckets. ``shares`` is a budget
of memory or places that all clients hold together, with a share for each.

Nothing is refused: a publish takes its tokens after it happened and may overdraw the bucket, then
its connection waits. A debt is bounded, so no connection waits longer than
``PUBLISH_HOLD_SECONDS_MAX``. Waiting connections are served in order.
"""
