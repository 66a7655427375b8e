"""``valueFormat`` avro and json of a write: official clients read what Spark wrote, by schema."""

from __future__ import annotations

import io
import json
import urllib.request
from typing import TYPE_CHECKING, Any

import fastavro
import pulsar
import pytest
from chispa import assert_df_equality
from pulsar.schema import (
    Array,
    AvroSchema,
    Boolean,
    BytesSchema,
    Double,
    JsonSchema,
    Long,
    Map,
    Record,
    String,
)
from pyspark.errors import PySparkException
from pyspark.sql.functions import col, struct

import pulsark
from pulsark.admin_client.client import AdminClient
from tests.support.standalone import Standalone

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

DELIVERIES = ("exactly-once", "at-least-once")


class Place(Record):
    x = Double()
    name = String()


class Sale(Record):
    number = Long()
    shop = String()
    amount = Double()
    paid = Boolean()
    tags = Array(String())
    counts = Map(Long())
    place = Place()


class LaterSale(Record):
    number = Long()
    amount = Double()
    currency = String(required_default=True)


class Short(Record):
    number = Long()
    shop = String()


SCHEMAS: dict[str, Any] = {"avro": AvroSchema, "json": JsonSchema}
FIELDS = """id as number, if(id % 5 = 0, null, concat('shop ', id % 3)) as shop, id / 4 as amount,
    id % 2 = 0 as paid, if(id % 7 = 0, null, array('a', string(id))) as tags,
    map('n', id) as counts,
    if(id % 3 = 0, null, named_struct('x', id + 0.5D, 'name', 'here')) as place""".replace(
    "\n", " "
)


def sales(spark: SparkSession, first: int, last: int) -> DataFrame:
    return spark.range(first, last, 1, 2).selectExpr(
        *_split(FIELDS), "concat('k', id % 9) as __key", "map('n', string(id)) as __properties"
    )


def _split(text: str) -> list[str]:
    """At commas that are in no parentheses."""
    found, depth = [""], 0
    for char in text:
        depth += {"(": 1, ")": -1}.get(char, 0)
        if char == "," and not depth:
            found.append("")
        else:
            found[-1] += char
    return found


def expected(number: int) -> dict[str, Any]:
    return {
        "number": number,
        "shop": None if number % 5 == 0 else f"shop {number % 3}",
        "amount": number / 4,
        "paid": number % 2 == 0,
        "tags": None if number % 7 == 0 else ["a", str(number)],
        "counts": {"n": number},
        "place": None if number % 3 == 0 else {"x": number + 0.5, "name": "here"},
    }


def plain(found: Any) -> Any:
    """A record of the client as a dict."""
    if isinstance(found, Record):
        return {name: plain(getattr(found, name)) for name in found._fields}
    # What was not sent of a record the client fills with the field itself.
    return None if isinstance(found, Record | type) else found


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return str(request.node.name).translate(str.maketrans("[]", "__"))


def write(frame: DataFrame, options: dict[str, Any], **more: Any) -> None:
    frame.write.format("pulsark").options(**options, **more).mode("append").save()


def consumed(client: pulsar.Client, topic: str, schema: Any, count: int) -> list[Any]:
    consumer = client.subscribe(
        topic, f"s{count}", schema=schema, initial_position=pulsar.InitialPosition.Earliest
    )
    try:
        messages = [consumer.receive(20_000) for _ in range(count)]
        with pytest.raises(pulsar.Timeout):
            consumer.receive(200)
        return messages
    finally:
        consumer.close()


def schemas(broker: Standalone, topic: str) -> list[dict[str, Any]]:
    url = f"{broker.web_url}/admin/v2/schemas/public/default/{topic}/schemas"
    with urllib.request.urlopen(url) as response:
        found: list[dict[str, Any]] = json.loads(response.read())["getSchemaResponses"]
    return found


@pytest.mark.feature("F91")
@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("value_format", ["avro", "json"])
def test_clients_with_a_schema_read_columns_that_spark_wrote(
    spark: SparkSession,
    client: pulsar.Client,
    broker: Standalone,
    writing: dict[str, Any],
    topic: str,
    value_format: str,
    delivery: str,
) -> None:
    write(
        sales(spark, 0, 300), writing, topic=topic, createTopic="true", numPartitions=2,
        valueFormat=value_format, delivery=delivery,
    )  # fmt: skip
    found = consumed(client, topic, SCHEMAS[value_format](Sale), 300)
    assert sorted(m.value().number for m in found) == list(range(300))
    for message in found:
        sale = message.value()
        number = sale.number
        got = plain(sale)
        if number % 3 == 0 and value_format == "json":
            got["place"] = None  # the client has an empty one of what was not sent
        assert got == expected(number)
        assert message.partition_key() == f"k{number % 9}"
        assert message.properties() == {"n": str(number)}
        assert message._message.int_schema_version() == 0
    (schema,) = schemas(broker, topic)
    assert schema["type"] == value_format.upper()
    read = spark.read.format("pulsark").options(**writing, topic=topic, valueFormat="auto").load()
    back = {row.number: row.asDict(recursive=True) for row in read.select(*expected(0)).collect()}
    assert back == {number: expected(number) for number in range(300)}


@pytest.mark.parametrize("value_format", ["avro", "json"])
def test_the_table_has_the_fields_and_no_payloads(
    spark: SparkSession, writing: dict[str, Any], topic: str, value_format: str
) -> None:
    value = sales(spark, 0, 100).select(
        struct("number", "shop", "tags", "place").alias("value"), col("__key").alias("key")
    )
    write(value, writing, topic=topic, createTopic="true", valueFormat=value_format)
    table = spark.read.format("delta").load(pulsark.table(topic, **writing))
    assert table.where("value_raw IS NOT NULL").count() == 0
    assert table.where("value.number = 4 AND value.place.x = 4.5").count() == 1
    assert table.where("key = 'k3'").count() == 11


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_decimals_are_the_same_numbers_for_spark_and_for_clients(
    spark: SparkSession,
    client: pulsar.Client,
    broker: Standalone,
    writing: dict[str, Any],
    topic: str,
    delivery: str,
) -> None:
    prices = spark.range(-150, 150, 1, 2).selectExpr(
        "id AS number",
        "if(id % 7 = 0, null, cast(id * 12345678901.25 AS decimal(20, 2))) AS price",
        "array(cast(id AS decimal(38, 0))) AS counts",
    )
    write(prices, writing, topic=topic, createTopic="true", valueFormat="avro", delivery=delivery)
    read = spark.read.format("pulsark").options(**writing, topic=topic, valueFormat="auto").load()
    assert dict(read.dtypes)["price"] == "decimal(20,2)"
    found = read.select("number", "price", "counts").orderBy("number")
    assert_df_equality(found, prices.orderBy("number"), ignore_nullable=True)
    sent = sorted(prices.collect())
    (registered,) = schemas(broker, topic)
    definition = fastavro.parse_schema(json.loads(registered["data"]))
    payloads = [m.data() for m in consumed(client, topic, BytesSchema(), len(sent))]
    values = [fastavro.schemaless_reader(io.BytesIO(each), definition, None) for each in payloads]
    assert sorted((v["number"], v["price"], v["counts"]) for v in values) == sent
    if delivery == "exactly-once":
        table = spark.read.format("delta").load(pulsark.table(topic, **writing)).select("value.*")
        assert_df_equality(table.orderBy("number"), found, ignore_nullable=True)


def test_where_schemas_are_enforced_rows_without_one_are_refused(
    spark: SparkSession, broker: Standalone, writing: dict[str, Any], topic: str
) -> None:
    typed = {"topic": topic, "createTopic": "true", "valueFormat": "avro"}
    write(sales(spark, 0, 10), writing, **typed)
    path = f"/persistent/public/default/{topic}/schemaValidationEnforced"
    AdminClient(broker.web_url).call("POST", path, True)
    plain_rows = spark.range(5).selectExpr("cast(id AS string) AS value")
    with pytest.raises(PySparkException, match="valueFormat to avro or json"):
        write(plain_rows, writing, topic=topic)
    by_row = plain_rows.selectExpr("value", f"'{topic}' AS topic")
    with pytest.raises(PySparkException, match="valueFormat to avro or json"):
        write(by_row, writing)
    write(sales(spark, 10, 20), writing, **typed)
    assert spark.read.format("pulsark").options(**writing, topic=topic).load().count() == 20


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("value_format", ["avro", "json"])
def test_a_dataframe_with_one_more_field_makes_a_version_that_both_read(
    spark: SparkSession,
    client: pulsar.Client,
    broker: Standalone,
    writing: dict[str, Any],
    topic: str,
    value_format: str,
    delivery: str,
) -> None:
    options = {**writing, "topic": topic, "valueFormat": value_format, "delivery": delivery}
    write(sales(spark, 0, 20), options, createTopic="true")
    later = sales(spark, 20, 40).selectExpr("'EUR' as currency", "*")
    write(later, options)
    write(sales(spark, 40, 60), options)  # fits the newest version, which allows null
    assert len(schemas(broker, topic)) == 2
    found = consumed(client, topic, SCHEMAS[value_format](LaterSale), 60)
    assert [m._message.int_schema_version() for m in found].count(0) == 20
    for message in found:
        sale = message.value()
        assert sale.currency == ("EUR" if 20 <= sale.number < 40 else None)
        assert sale.amount == sale.number / 4
    old = consumed(client, topic, SCHEMAS[value_format](Sale), 60)[30].value()
    assert old.amount == old.number / 4


def test_what_a_read_gives_can_be_written_to_another_topic(
    spark: SparkSession, client: pulsar.Client, writing: dict[str, Any], topic: str
) -> None:
    producer = client.create_producer(topic, schema=AvroSchema(Sale))
    for number in range(30):
        producer.send(Sale(number=number, shop="s", amount=1.5), partition_key=f"k{number}")
    producer.close()
    read = spark.read.format("pulsark").options(**writing, topic=topic, valueFormat="auto").load()
    write(
        read.withColumn("amount", read.amount * 2), writing, topic=f"{topic}-2",
        createTopic="true", valueFormat="avro",
    )  # fmt: skip
    found = consumed(client, f"{topic}-2", AvroSchema(Sale), 30)
    assert [m.value().number for m in found] == list(range(30))
    assert {m.value().amount for m in found} == {3.0}
    assert [m.partition_key() for m in found] == [f"k{n}" for n in range(30)]


def test_a_topics_own_schema_is_kept_whatever_the_order_and_width_of_columns(
    spark: SparkSession,
    client: pulsar.Client,
    broker: Standalone,
    writing: dict[str, Any],
    topic: str,
) -> None:
    client.create_producer(topic, schema=AvroSchema(Sale)).close()
    frame = spark.range(5).selectExpr("'s' as SHOP", "int(id) as number", "float(0.5) as amount")
    write(frame, writing, topic=topic, valueFormat="avro")
    assert len(schemas(broker, topic)) == 1
    found = consumed(client, topic, AvroSchema(Sale), 5)
    assert [(m.value().number, m.value().shop, m.value().amount) for m in found] == [
        (n, "s", 0.5) for n in range(5)
    ]


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_schema_that_the_topic_does_not_take_fails_before_any_task(
    spark: SparkSession,
    client: pulsar.Client,
    broker: Standalone,
    writing: dict[str, Any],
    topic: str,
    delivery: str,
    tmp_path: Path,
) -> None:
    client.create_producer(topic, schema=AvroSchema(Sale)).close()
    options = {**writing, "topic": topic, "delivery": delivery}
    trace = tmp_path / "ran"

    def running(frame: DataFrame) -> DataFrame:
        def ran(rows: Any) -> Any:
            trace.touch()
            yield from rows

        return frame.mapInArrow(ran, frame.schema)

    wrong = running(spark.range(5).selectExpr("id as number", "array(1) as shop"))
    with pytest.raises(PySparkException, match=r"does not take the schema of these columns.*shop"):
        write(wrong, options, valueFormat="avro")
    with pytest.raises(PySparkException, match="exists schema type AVRO"):
        write(wrong, options, valueFormat="json")
    assert not trace.exists()
    assert len(schemas(broker, topic)) == 1


def test_columns_that_cannot_be_fields_are_named(
    spark: SparkSession, writing: dict[str, Any], topic: str
) -> None:
    options = {**writing, "createTopic": "true"}
    frame = spark.range(3)
    wrong = (
        (["map(id, 'x') as m"], "avro", "'m' is a map by long"),
        (["struct(id as `a b`) as value"], "json", "'a b' cannot be a field"),
        (["id", "id as __kez"], "avro", "did you mean '__key'"),
        (["id as __key"], "avro", "no column can be a field"),
        (["struct(id) as value"], "raw", "set option 'valueFormat' to avro or json"),
        (["struct(id) as value", "id as amount"], "avro", "'amount' is unknown"),
        (["double('NaN') as d"], "json", "'d' is NaN or infinite"),
        (["array(id, null) as a"], "avro", r"'a\[\]' is null in a row"),
        (["id"], "xml", "Valid values: raw, avro, json"),
    )
    for number, (columns, value_format, message) in enumerate(wrong):
        given = {**options, "topic": f"{topic}-{number}", "valueFormat": value_format}
        with pytest.raises(PySparkException, match=message):
            write(frame.selectExpr(*columns), given)


def test_null_structs_are_tombstones_and_so_are_rows_of_nulls(
    spark: SparkSession, client: pulsar.Client, writing: dict[str, Any], topic: str
) -> None:
    options = {**writing, "topic": topic, "valueFormat": "avro"}
    rows = spark.range(4).selectExpr("if(id = 1, null, id) as number", "concat('k', id) as __key")
    write(rows.coalesce(1), options, createTopic="true")
    value = rows.selectExpr("if(number = 2, null, struct(number)) as value", "__key as key")
    write(value.coalesce(1), options)
    read = spark.read.format("pulsark").options(**writing, topic=topic).load()
    nulls = [
        row.value is None for row in read.orderBy("ledger_id", "entry_id", "batch_index").collect()
    ]
    assert nulls == [False, True, False, False, False, False, True, False]


def test_a_stream_writes_typed_values_too(
    spark: SparkSession,
    client: pulsar.Client,
    writing: dict[str, Any],
    topic: str,
    tmp_path: Path,
) -> None:
    producer = client.create_producer(topic, schema=AvroSchema(Sale))
    for number in range(25):
        producer.send(Sale(number=number, shop="s", amount=float(number)))
    producer.close()
    for last in (25, 26):
        query = (
            spark.readStream.format("pulsark")
            .options(**writing, topic=topic, valueFormat="auto", startingOffsets="earliest")
            .option("maxRowsPerTrigger", 10)
            .load()
            .selectExpr("number", "upper(shop) as shop", "__key")
            .writeStream.format("pulsark")
            .options(**writing, topic=f"{topic}-2", createTopic="true", valueFormat="json")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        found = consumed(client, f"{topic}-2", JsonSchema(Short), last)
        assert [m.value().number for m in found] == list(range(last))
        producer = client.create_producer(topic, schema=AvroSchema(Sale))
        producer.send(Sale(number=25, shop="s", amount=0.0))
        producer.close()


def test_rows_that_name_their_topics_have_a_schema_in_each(
    spark: SparkSession,
    client: pulsar.Client,
    broker: Standalone,
    writing: dict[str, Any],
    topic: str,
) -> None:
    client.create_producer(f"{topic}-0", schema=AvroSchema(Sale)).close()
    frame = spark.range(60).selectExpr(
        f"concat('{topic}-', id % 2) as __topic", "id as number", "'s' as shop"
    )
    write(frame, writing, createTopic="true", valueFormat="avro")
    for place in range(2):
        found = consumed(client, f"{topic}-{place}", AvroSchema(Short), 30)
        assert sorted(m.value().number for m in found) == list(range(place, 60, 2))
        assert len(schemas(broker, f"{topic}-{place}")) == 1
