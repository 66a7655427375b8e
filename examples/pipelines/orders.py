"""A topic becomes tables; what is worth telling goes into another topic, each row once.

Addresses come from ``PULSARK_SERVICE_URL`` and ``PULSARK_ADMIN_URL``. Spark finds the format by
itself, so nothing is registered here.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()


@dp.table(comment="every order, as it was published")
def orders() -> DataFrame:
    frame = (
        spark.readStream.format("pulsark")
        .option("topic", "orders")
        .option("startingOffsets", "earliest")
        .option("columns", "key,value,publish_time,message_id")
        .load()
    )
    return frame.withColumn("value", f.col("value").cast("string"))


@dp.materialized_view(comment="how much each table has ordered")
def orders_of_tables() -> DataFrame:
    return spark.read.table("orders").groupBy("key").count()


dp.create_sink("bills", format="pulsark", options={"topic": "bills", "createTopic": "true"})


@dp.append_flow(target="bills")
def bill() -> DataFrame:
    return spark.readStream.table("orders").select(
        "key", f.concat(f.lit("to pay: "), "value").alias("value")
    )
