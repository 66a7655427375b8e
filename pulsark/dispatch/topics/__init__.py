"""Which topics exist, and which broker serves them.

Start with ``registry``: it has the loaded topics, one object each. It loads a topic with
``loader``; ``damage`` tells operators why one fails. ``catalog`` lists the topics that exist,
``creation`` and ``deletion`` create and delete them, and ``remains`` deletes what belongs to them.

``lookup`` finds or chooses the broker of a topic. ``ownership`` claims bundles, ``bundle_release``
gives them up, ``bundle_split`` cuts them, and ``isolation_moves`` moves those that a policy takes
away. ``guarded_storage`` writes only while a bundle is owned; ``cursor_logs`` has a log per bundle.

``topic_lists`` and ``topic_pattern`` list a namespace's topics and watch the list.
``consumer_admission`` and ``schema_admission`` decide whether a consumer and its schema are
accepted, ``policy_source`` reads policies, ``policy_updates`` applies changed ones to loaded
topics, ``inactivity`` finds unused topics and subscriptions.

A topic is loaded only while this broker owns its bundle, and closed before it gives the bundle up.
"""
