"""The routes of Pulsar's admin REST API, one module per resource, with Pulsar's paths and names.

``policy_table`` lists all policies of namespaces and topics, ``policy_values`` checks their values,
and ``policies`` makes routes from the list. ``unsupported`` answers the routes
of Pulsar that Pulsark does not implement.
"""
