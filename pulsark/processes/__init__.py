"""What a standalone is made of, in one process or in several.

``served_broker`` is a broker with its ports, over storage that is there; ``pulsark.standalone``
puts it and its bookies into one process. With several brokers there are several processes over one
data directory. ``supervisor`` starts them, and starts again what died: one ``bookie_process``,
which looks after the disks and says first of all whether they and the metadata store belong
together, and each ``broker_process``, which reaches the bookies by a Unix socket and shares the
metadata store. ``child`` is how a process gets what it has to know, and ends with its supervisor.
"""
