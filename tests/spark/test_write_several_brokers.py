"""``df.write`` and reading where the partitions of a topic are at three brokers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import Request, urlopen

from tests.spark.test_write import received, rows, write
from tests.support.python_client import connected
from tests.support.several_brokers import owners, spread
from tests.support.standalone import Standalone

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 4
SETTINGS = {"PULSARK_defaultNumberOfNamespaceBundles": "16"}


def test_rows_are_in_partitions_of_all_brokers(spark: SparkSession, tmp_path: Path) -> None:
    parts = [f"p-partition-{number}" for number in range(PARTITIONS)]
    with Standalone(tmp_path / "data", "--brokers", "3", env=SETTINGS) as standalone:
        path = f"{standalone.web_url}/admin/v2/persistent/public/default/p/partitions"
        headers = {"Content-Type": "application/json"}
        urlopen(Request(path, b"%d" % PARTITIONS, headers, method="PUT"), timeout=60).close()
        with connected(standalone) as client:
            client.create_producer("p").close()  # now each bundle has an owner
            spread(standalone, parts)
            assert len(set(owners(standalone, parts).values())) == 3
            options = {"serviceUrl": standalone.service_url, "adminUrl": standalone.web_url}
            for _ in range(2):  # the second is known as the first
                write(rows(spark, 1000), options, topic="p", txnAppId="load", txnVersion="1")
            write(rows(spark, 10), options, topic="p")
            found = received(client, "p", 1010)
            assert sorted(int(m.data()) for m in found) == sorted([*range(1000), *range(10)])
            assert {m.message_id().partition() for m in found} == set(range(PARTITIONS))
            read = spark.read.format("pulsark").options(**options, topic="p").load()
            assert read.count() == 1010
