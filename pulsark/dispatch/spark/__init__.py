"""The broker's side of Spark: Arrow Flight and claims of queries.

``flight_listener`` listens from the start and imports pyarrow.flight at the first connection;
``flight_relay`` connects clients to the server behind it; ``flight_server`` answers with record
batches. ``query_claims`` lets only one query at a time use a subscription.
"""
