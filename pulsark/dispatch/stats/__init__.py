"""Statistics of topics, subscriptions, producers and consumers, with Pulsar's names.

Start with ``stats``: it builds the documents ``stats`` and ``internalStats``. ``rates`` computes
rates per second from counters, ``key_shared_stats`` shows which consumer has which hash ranges, and
``load_reports`` tells other brokers the load of this one, which ``bundle_loads`` measures.

Nothing here changes what it reads, or loads a topic.
"""
