"""Settings: what an operator may change, from a file, the environment or the command line.

Read ``settings`` first: one frozen dataclass with every key, its unit and its default. ``keys`` has
them one by one, as texts; ``checks`` says which values fit together. ``sources``
merges file, environment and flags, and says where each value came from. ``pulsar_keys`` lists the
keys of Pulsar's ``broker.conf`` that Pulsark knows and does not use, so that a configuration can
be taken over as it is.

A setting is read once, at the start; nothing changes it afterwards.
"""
