"""Copy a topic into a Delta table, each message once.

It runs until what was there at its start is copied, or for ever with ``--continuous``, and can be
killed and started again at any time: the checkpoint records what was read, and Delta drops a batch
that it already has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pulsark.jobs.job import AtBroker, Context, Help, Job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters(AtBroker):
    """The parameters of ``topic_to_delta``."""

    topic: Annotated[str, Help("the topic to read")]
    table: Annotated[str, Help("path or URI of the Delta table")]
    checkpoint: Annotated[str, Help("where progress is kept")]
    subscription: Annotated[str | None, Help("durable subscription that follows the job")] = None
    continuous: Annotated[bool, Help("go on until stopped; else until all is copied")] = False


def run(wanted: Parameters, context: Context) -> Mapping[str, Any]:
    """Copy; raises what made the query fail."""
    options = {
        "serviceUrl": wanted.service_url,
        "topic": wanted.topic,
        "startingOffsets": "earliest",
        **({"adminUrl": wanted.admin_url} if wanted.admin_url else {}),
        **({"subscription": wanted.subscription} if wanted.subscription else {}),
    }
    batches = 0

    def write(batch: DataFrame, batch_id: int) -> None:
        nonlocal batches
        (
            batch.write.format("delta")
            .mode("append")
            .option("txnAppId", f"{wanted.topic} {wanted.checkpoint}")
            .option("txnVersion", batch_id)
            .save(wanted.table)
        )
        batches += 1
        context.progress.show(f"{wanted.topic}: batch {batch_id} written")

    stream = context.spark.readStream.format("pulsark").options(**options).load()
    writer = stream.writeStream.foreachBatch(write).option("checkpointLocation", wanted.checkpoint)
    if not wanted.continuous:
        writer = writer.trigger(availableNow=True)
    query = writer.start()
    try:
        query.awaitTermination()
    finally:
        query.stop()
    rows = sum(progress.numInputRows for progress in query.recentProgress)
    return {"topic": wanted.topic, "table": wanted.table, "batches": batches, "rows": rows}


JOB = Job("topic_to_delta", "Copy a topic into a Delta table, each message once.", Parameters, run)
