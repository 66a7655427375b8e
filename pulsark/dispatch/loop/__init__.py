"""Fair use of the event loop.

``run_queue`` runs clients' work, a few milliseconds a turn; ``turns`` iterates over many items with
pauses; ``chores`` runs periodic work, and ``retries`` what
has to be tried again. ``stalls`` measures how long the loop was blocked, ``load``
whether clients keep it busy; ``garbage`` decides when to collect; ``defects`` logs an unexpected
exception once for each origin.
"""
