"""Statistics of topics, subscriptions, producers and consumers, with Pulsar's names.

``stats`` builds the documents, ``rates`` computes rates per second, ``key_shared_stats`` shows
which consumer has which hash ranges. Nothing here changes what it reads.
"""
