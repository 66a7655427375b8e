"""The metadata store: who owns what, which ledgers make a topic, tenants and namespaces."""
