"""The metadata store in etcd, over the JSON gateway of its own servers. See ``EtcdMetadataStore``.

``connection`` is HTTP/1.1 to one server, ``gateway`` a pool of them with failover, deadlines and
outcomes. ``messages`` are etcd's requests and answers, ``layout`` says where values are, ``plan``
makes a transaction of a commit; these are pure. ``writer`` carries commits out, ``lease`` keeps the
session, ``watch`` follows the changes of others, ``marks`` number the states of the store.

Nothing here waits without a limit. A write whose answer is lost is not a failed write.
"""
