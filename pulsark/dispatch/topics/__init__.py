"""Which topics exist, and which broker serves them.

Start with ``registry``: it has the loaded topics, one object each. It loads a topic with
``loader``; ``damage`` tells operators why one fails; ``catalog`` lists the topics that exist;
``ownership`` claims their bundles, and ``cursor_logs`` has the cursor log of each bundle.
``names_by_bundle`` finds the loaded topics of one bundle. ``bundle_release`` closes all that is in
memory of one that leaves the broker, ``bundle_split`` of one that becomes several.
``creation`` makes topics (``topic_making``: one at a time per name), ``deletion`` deletes them,
``remains`` deletes what belongs to them. ``non_persistent_topics`` has the non-persistent ones.

``topic_lists`` and ``topic_pattern`` list a namespace's topics and watch the list.
``consumer_admission`` and ``schema_admission`` decide whether a consumer and its schema are
accepted, ``policy_source`` reads policies, ``policy_updates`` applies changed ones to loaded
topics, ``inactivity`` finds unused topics and subscriptions.
"""
