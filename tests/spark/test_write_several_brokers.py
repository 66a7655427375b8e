"""Writing, sealing, reading and erasing where the partitions of a topic are at several brokers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import Request, urlopen

import pytest

from pulsark.jobs.erase_messages import JOB as ERASING
from pulsark.jobs.job import Context
from pulsark.jobs.runner import run_program
from tests.spark.test_write import received, rows, write
from tests.support.local_cluster import LocalCluster
from tests.support.python_client import connected
from tests.support.seal_contract import run_job
from tests.support.several_brokers import owners, spread
from tests.support.standalone import Standalone

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 4
SETTINGS = {
    "PULSARK_defaultNumberOfNamespaceBundles": "16",
    "PULSARK_sealByJobs": "true",
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("kind", "brokers"),
    [
        pytest.param(Standalone, 3, id="three-brokers"),
        pytest.param(LocalCluster, 2, id="cluster", marks=pytest.mark.chaos),
    ],
)
def test_rows_are_in_partitions_of_all_brokers(
    spark: SparkSession, tmp_path: Path, kind: type[Standalone], brokers: int
) -> None:
    parts = [f"p-partition-{number}" for number in range(PARTITIONS)]
    with kind(tmp_path / "data", "--brokers", str(brokers), env=SETTINGS) as standalone:
        path = f"{standalone.web_url}/admin/v2/persistent/public/default/p/partitions"
        headers = {"Content-Type": "application/json"}
        urlopen(Request(path, b"%d" % PARTITIONS, headers, method="PUT"), timeout=60).close()
        with connected(standalone) as client:
            client.create_producer("p").close()  # now each bundle has an owner
            spread(standalone, parts)
            assert len(set(owners(standalone, parts).values())) == brokers
            options = {"serviceUrl": standalone.service_url, "adminUrl": standalone.web_url}
            for _ in range(2):  # the second is known as the first
                write(rows(spark, 1000), options, topic="p", txnAppId="load", txnVersion="1")
            write(rows(spark, 10), options, topic="p")
            found = received(client, "p", 1010)
            assert sorted(int(m.data()) for m in found) == sorted([*range(1000), *range(10)])
            assert {m.message_id().partition() for m in found} == set(range(PARTITIONS))

            def read() -> DataFrame:
                return spark.read.format("pulsark").options(**options, topic="p").load()

            assert read().count() == 1010
            producer = client.create_producer("p", batching_enabled=False)
            for number in range(2000, 2040):
                producer.send(b"%d" % number)
            assert (read().count(), in_table(standalone)) == (1050, 1010)
            assert run_job(standalone, "p", spark) == 0
            assert (read().count(), in_table(standalone)) == (1050, 1050)
            assert sorted(map(int, values(read()))) == sorted(
                [*range(1000), *range(10), *range(2000, 2040)]
            )
            words = ["--topic", "p", "--where", "cast(value AS string) IN ('2003', '7', '999')"]
            words += ["--service-url", standalone.service_url, "--admin-url", standalone.web_url]
            assert run_program(ERASING, words, Context(ERASING.name, given_spark=spark)) == 0
            left = sorted(map(int, values(read())))
            gone = {2003, 7, 999}
            assert left == sorted(
                number
                for number in [*range(1000), *range(10), *range(2000, 2040)]
                if number not in gone
            )


def in_table(standalone: Standalone) -> int:
    path = f"{standalone.web_url}/admin/v2/persistent/public/default/p/table"
    with urlopen(path, timeout=60) as answer:
        return int(json.load(answer)["rows"])


def values(frame: DataFrame) -> list[bytes]:
    return [bytes(row[0]) for row in frame.select("value").collect()]
