"""A Spark application that carries a topic into another one; the tests kill and restart it.

It says ``started`` when its query runs.

    python chain_driver.py SERVICE_URL ADMIN_URL SOURCE SINK CHECKPOINT
"""

from __future__ import annotations

import sys

from tests.spark.driver_session import driver_session


def main(service_url: str, admin_url: str, source: str, sink: str, place: str) -> None:
    """Run until killed."""
    spark = driver_session()
    urls = {"serviceUrl": service_url, "adminUrl": admin_url}
    query = (
        spark.readStream.format("pulsark")
        .options(**urls, topic=source, subscription="chain", startingOffsets="earliest")
        .options(columns="value,key", minPartitions="6")
        .load()
        .writeStream.format("pulsark")
        .options(**urls, topic=sink, checkpointLocation=place)
        .start()
    )
    print("started", flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
