"""Calls between the brokers of a cluster, over the admin API that each of them has.

Start with ``peers``. Nothing here is imported where there is one broker only.

Invariants: a broker is called that the registry lists, and no other. A call is never sent on by its
receiver. An answer is read as it is passed on, so that its size does not matter. A call ends when
nothing was heard for ``adminForwardTimeoutSeconds``, or with whoever waits for it.
"""
