"""The brokers of a cluster: which are alive, how busy each is, and which should take a bundle.

Start with ``registry``: it announces this broker and follows the others. ``load`` is the report of
one broker, ``isolation`` and ``anti_affinity`` restrict which brokers may have a namespace, and
``placement`` chooses one of the ``candidates``. ``splitting`` and ``shedding`` decide which bundles
are split and which leave a busy broker. All of these decisions are pure. ``owners`` reads from the
metadata store which broker owns a bundle. ``leader`` elects the broker that works for all.
``counts`` has what ``/metrics`` tells of bundles.

Everything here may be out of date: a dead broker stays listed until its session expires. So nothing
here decides who owns a bundle. ``dispatch.topics.ownership`` claims bundles, by compare-and-set.
"""
