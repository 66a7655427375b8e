"""The broker: serves producers and consumers.

Rooms, bottom up: ``loop`` (fair use of the event loop), ``policies``, ``model`` (types that all
rooms share), ``producer``, ``subscription``, ``topic``, ``topics`` (which topics exist, and who
serves them), ``tables`` (sealing and table maintenance), ``upkeep`` (periodic chores), ``stats``,
``spark`` (the Flight port), ``connection`` (Pulsar's binary protocol). ``broker`` assembles them.

Everything runs on one event loop. Nothing here blocks it on a disk, and no single client's work
makes a turn long.
"""
