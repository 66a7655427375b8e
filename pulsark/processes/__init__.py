"""The processes of a standalone with several brokers, and of a cluster.

Start with ``supervisor``: it starts one ``bookie_process`` and N ``broker_process``es, and restarts
each that dies (``kept_child``). ``child`` is the main program of all of them; ``duty`` is what the
supervisor tells it. ``own_disks`` checks and opens the data directory, ``run_directory`` has the
Unix sockets, and ``served_broker`` is a broker with its ports. ``pulsark.standalone`` runs one
broker and its bookies in one process, from the same parts.

Only the bookie process writes to journals and storage roots. It starts first and stops last, and it
refuses a metadata store that does not belong to its bookies before any broker opens it. A child
ends when its supervisor does. A broker whose metadata session has ended exits: its successor starts
with a new session.

A cluster's broker (``cluster_broker``) has its metadata in ZooKeeper (``joined_metadata``) and its
ledgers in Apache BookKeeper (``bookkeeper_storage``), and writes nothing on its own machine.
``local_cluster`` runs all servers of a cluster on one machine, to try it.
"""
