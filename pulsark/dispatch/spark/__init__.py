"""The broker's side of Spark: Arrow Flight and claims of queries.

Start with ``flight_listener``: it listens from the start, and imports pyarrow.flight at the first
connection. ``flight_relay`` copies bytes between clients and the server behind it, with TLS in
``flight_tls``; ``flight_requests`` and ``flight_calls`` bound what clients send. ``flight_server``
answers with record batches from ``topic_entries``. ``flight_login`` and ``flight_rights`` check
each call. ``query_claims`` lets only one query at a time use a subscription.

A stream ends at the last confirmed entry. The server's threads never touch topics: they ask the
event loop.
"""
