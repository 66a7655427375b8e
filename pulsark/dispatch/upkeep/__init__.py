"""Chores: what a broker does periodically.

``upkeep`` has the chores of loaded topics. ``unloaded_topics`` walks over the unloaded ones; it
loads a topic only if ``unloaded_policies`` or ``unloaded_sealing`` finds work.
``storage_quotas`` sums up what they store. ``interrupted_deletions`` finishes deletions that a stop
of the process cut short.
"""
