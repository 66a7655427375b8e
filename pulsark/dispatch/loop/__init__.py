"""Fair use of the event loop.

Start with ``run_queue``: it runs deferrable work of clients, a few milliseconds per turn.
``request_turns`` shares out the time for requests, which are tasks, among all clients. ``turns``
iterates over many items with pauses, ``chores`` runs periodic work, ``retries`` repeats work until
it succeeds, and ``followed_value`` reads what has changed. ``stalls`` measures how long the loop is
blocked, ``load`` whether clients keep it busy. ``garbage`` decides when to collect reference
cycles, and ``defects`` logs each unexpected exception once per origin.

No client's work takes more than a few milliseconds of a turn. A defect in one client's work ends
neither the loop nor the work of others.
"""
