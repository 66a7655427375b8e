"""Types that all rooms of the broker share.

``interfaces`` is what connections and statistics know of any topic and any subscription; ``client``
is what those know of a connection. ``producer`` and ``consumer`` are a client's ends, and
``holdings`` lists all of them that one client has, so that they leave with it. ``entry`` is what
topics pass to subscriptions. ``subscription_type`` decides which consumer gets an entry,
``producer_access`` which producer may publish.
"""
