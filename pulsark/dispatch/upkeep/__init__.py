"""The periodic work of a broker.

Start with ``upkeep``: it has the chores of loaded topics. ``unloaded_topics`` walks slowly over all
others, and loads a topic only if ``unloaded_policies`` or ``unloaded_sealing`` finds work.
``share`` divides that walk among several brokers. ``storage_quotas`` sums up what namespaces and
tenants store. ``load_balance`` has bundles split and moved. ``interrupted_deletions`` finishes
deletions of topics that the end of a process cut short, and ``deleted_namespaces`` clears up behind
those of namespaces.

A chore never blocks the loop for long, however many topics there are, and a failed chore runs again
at its next time. Time passes for unloaded topics as for loaded ones: their policies apply, too.
"""
