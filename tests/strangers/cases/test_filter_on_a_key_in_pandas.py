"""A filter on a key returned no rows in deltalake, pandas, pyarrow and DuckDB.

Did: sealed a topic and called ``DeltaTable(...).to_pandas(filters=[("key", "=", "ABI")])``.
Saw: no rows, although the table has some with this key; Spark and Polars found them.
Expected: the rows, and that files without this key are skipped.
"""

from __future__ import annotations

import duckdb
import pulsar
import pyarrow.dataset as ds
from deltalake import DeltaTable

import pulsark
from pulsark.admin_client.client import AdminClient
from tests.support.standalone import Standalone


def test_rows_are_found_by_their_key(
    shared_standalone: Standalone, client: pulsar.Client, admin: AdminClient, topic: str
) -> None:
    producer = client.create_producer(topic)
    for keys in (["ABI", "ABJ"], ["XYZ"]):
        for key in keys:
            producer.send(b"value", partition_key=key)
        admin.call("POST", f"/{topic.replace('://', '/')}/seal")
    where = pulsark.table(
        topic, serviceUrl=shared_standalone.service_url, adminUrl=shared_standalone.web_url
    )
    table = DeltaTable(where)
    assert len(table.to_pandas(columns=["key"], filters=[("key", "=", "ABI")])) == 1
    dataset = table.to_pyarrow_dataset()
    assert dataset.filter(ds.field("key").is_valid()).count_rows() == 3
    assert len(list(dataset.get_fragments(filter=ds.field("key") == "XYZ"))) == 1
    connection = duckdb.connect()
    connection.register("messages", dataset)
    count = "select count(*) from messages where key = 'ABI' and value_raw is null"
    assert connection.execute(count).fetchone() == (1,)
