"""The registry alone: versions, deletion, limits, and what overlaps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import patch

import pytest

import pulsark.dispatch.policies.schemas as registry
from pulsark.dispatch.loop.run_queue import RunQueue
from pulsark.dispatch.policies.schemas import NO_VERSION, Schemas
from pulsark.errors import ClientError, MetadataError, ServerError
from pulsark.limits import (
    METADATA_VALUE_BYTES_MAX,
    SCHEMA_BYTES_MAX,
    SCHEMA_PROPERTIES_BYTES_MAX,
    TURN_SECONDS,
)
from pulsark.metadata.changes import Change
from pulsark.metadata.memory import MemoryMetadataStore
from pulsark.metadata.resources import AUDIT_TOPIC
from pulsark.metadata.store import Versioned
from pulsark.schemas.definition import IncompatibleSchemaError, SchemaData, SchemaType
from pulsark.schemas.parsed import Parsed, parse
from pulsark.schemas.strategies import SchemaCompatibilityStrategy as S
from pulsark.wire.topic_name import TopicName
from tests.sim.disk import SimDisk
from tests.sim.metadata import paths_of
from tests.sim.simulation import Simulation
from tests.support.ticking_clock import TickingClock

NAME = TopicName.parse("t")
PATH = "/schemas/public/default/t"


def version(*fields: str) -> SchemaData:
    listed = [{"name": name, "type": "int", "default": 0} for name in fields]
    definition = {"type": "record", "name": "R", "fields": listed}
    return SchemaData(SchemaType.AVRO, json.dumps(definition).encode(), {"of": "t"})


class Fixture:
    def __init__(self, sim: Simulation) -> None:
        self.metadata = MemoryMetadataStore()
        self.runtime = sim.runtime(SimDisk())
        self.schemas = Schemas(self.metadata, self.runtime, RunQueue(self.runtime.clock))

    async def register(self, *fields: str, strategy: S = S.FULL) -> int:
        return await self.schemas.register(NAME, version(*fields), strategy)


def simulated(test):  # type: ignore[no-untyped-def]
    """Run a test in virtual time with a registry of its own."""

    def run() -> None:
        with Simulation() as sim:
            sim.run(test(Fixture(sim)))

    run.__name__ = test.__name__
    return run


@simulated
async def test_a_registry_of_another_process_sees_the_same(registry_: Fixture) -> None:
    assert await registry_.register("a") == 0
    assert await registry_.register("a", "b") == 1
    other = Schemas(registry_.metadata, registry_.runtime, RunQueue(registry_.runtime.clock))
    found = await other.get(NAME)
    assert (found.version, found.schema) == (1, version("a", "b"))
    assert found.timestamp == registry_.runtime.clock.now_ms()
    assert [each.version for each in await other.all(NAME)] == [0, 1]
    assert await other.version_of(NAME, version("a")) == 0
    assert await other.version_of(NAME, version("z")) == NO_VERSION


def protobuf(*names: str) -> SchemaData:
    """Return what Java's client registers; the definition in Avro has no numbers of fields."""
    info = [
        {"number": number, "name": name, "type": "STRING", "label": "LABEL_OPTIONAL"}
        for number, name in enumerate(names, 1)
    ]
    fields = [{"name": name, "type": "string"} for name in sorted(names)]
    avro = {"type": "record", "name": "R", "fields": fields}
    properties = {"__PARSING_INFO__": json.dumps(info)}
    return SchemaData(SchemaType.PROTOBUF, json.dumps(avro).encode(), properties)


def pair(value: SchemaData) -> SchemaData:
    data = bytes(4) + len(value.data).to_bytes(4, "big") + value.data
    properties = {
        "key.schema.type": "STRING",
        "value.schema.type": value.type.name,
        "value.schema.properties": json.dumps(dict(value.properties)),
    }
    return SchemaData(SchemaType.KEY_VALUE, data, properties)


@simulated
async def test_messages_with_other_numbers_of_fields_have_another_version(
    registry_: Fixture,
) -> None:
    """With the first version's numbers, values would be shown under each other's names."""
    for topic, wrap in ((NAME, lambda each: each), (TopicName.parse("pairs"), pair)):

        async def register(schema: SchemaData, topic: TopicName = topic) -> int:
            return await registry_.schemas.register(topic, schema, S.FULL_TRANSITIVE)

        assert await register(wrap(protobuf("a", "b"))) == 0
        assert await register(wrap(protobuf("b", "a"))) == 1
        assert await register(wrap(protobuf("a", "b"))) == 0
        assert await registry_.schemas.version_of(topic, wrap(protobuf("b", "a"))) == 1
        assert await register(wrap(replace(protobuf("b", "a"), properties={}))) == 0


@simulated
async def test_a_deletion_is_a_version_and_hides_those_before_it(registry_: Fixture) -> None:
    schemas = registry_.schemas
    assert await schemas.delete(NAME) == NO_VERSION
    await registry_.register("a")
    assert await schemas.delete(NAME) == await schemas.delete(NAME) == 1
    assert not await schemas.exist(NAME)
    assert await schemas.all(NAME) == []
    for number in (None, 0, 1, 2, -1):
        with pytest.raises(ClientError, match="has no") as refused:
            await schemas.get(NAME, number)
        assert refused.value.code == ServerError.TopicNotFound
    assert await schemas.register(NAME, SchemaData(SchemaType.STRING), S.FULL) == 2
    assert await schemas.version_of(NAME, version("a")) == NO_VERSION


@simulated
async def test_what_is_sealed_is_read_by_all_versions_that_messages_carry(
    registry_: Fixture,
) -> None:
    assert await registry_.schemas.by_version(NAME) == []
    await registry_.register("a")
    await registry_.schemas.delete(NAME)
    await registry_.schemas.register(NAME, SchemaData(SchemaType.STRING), S.FULL)
    assert await registry_.schemas.by_version(NAME.with_partition(3)) == [
        (bytes(8), version("a")),
        (bytes(7) + b"\x02", SchemaData(SchemaType.STRING)),
    ]


@simulated
async def test_erasing_leaves_nothing(registry_: Fixture) -> None:
    await registry_.schemas.erase(NAME)
    await registry_.register("a")
    await registry_.schemas.delete(NAME)
    await registry_.register("b")
    await registry_.schemas.erase(NAME)
    assert await registry_.metadata.children("/schemas/public/default") == []
    assert await registry_.register("c") == 0


@simulated
async def test_registering_and_erasing_at_once_never_list_what_is_gone(registry_: Fixture) -> None:
    for _ in range(50):
        await asyncio.gather(
            registry_.register("a"), registry_.schemas.erase(NAME), registry_.register("a", "b")
        )
        for stored in await registry_.schemas.all(NAME):
            assert stored.schema in (version("a"), version("a", "b"))


@simulated
async def test_what_is_erased_during_a_comparison_does_not_count(registry_: Fixture) -> None:
    await registry_.register("a")
    erased = False

    class Erasing(MemoryMetadataStore):
        async def get(self, path: str) -> Versioned | None:
            nonlocal erased
            if path != PATH and not erased:
                erased = True
                await registry_.schemas.erase(NAME)
            return await super().get(path)

    schemas = Schemas(
        Erasing(registry_.metadata.tree), registry_.runtime, RunQueue(registry_.runtime.clock)
    )
    assert await schemas.register(NAME, SchemaData(SchemaType.AVRO, b'"int"'), S.FULL) == 0
    assert erased


@simulated
async def test_a_lost_race_leaves_no_definition_behind(registry_: Fixture) -> None:
    results = await asyncio.gather(*(registry_.register("a") for _ in range(10)))
    assert results == [0] * 10
    assert len(await registry_.metadata.children(PATH)) == 1


@simulated
async def test_a_schema_that_could_not_be_listed_is_not_registered(registry_: Fixture) -> None:
    class Failing(MemoryMetadataStore):
        async def commit(self, changes: Sequence[Change]) -> Sequence[int]:
            if PATH in paths_of(changes):
                raise MetadataError("no room")
            return await super().commit(changes)

    schemas = Schemas(
        Failing(registry_.metadata.tree), registry_.runtime, RunQueue(registry_.runtime.clock)
    )
    with pytest.raises(MetadataError):
        await schemas.register(NAME, version("a"), S.FULL)
    assert not await registry_.schemas.exist(NAME)
    assert await registry_.register("a") == 0


@simulated
async def test_versions_are_limited_in_number_and_size(registry_: Fixture) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "SCHEMA_VERSIONS_MAX", 2)
        await registry_.register("a")
        await registry_.register("a", "b")
        with pytest.raises(IncompatibleSchemaError, match=r"has 2 versions, .*force=true"):
            await registry_.register("a", "b", "c")
        assert await registry_.register("a") == 0
        patch.setattr(registry, "SCHEMA_VERSIONS_MAX", 9)
        used = sum(len(each.data) for each in (version("a"), version("a", "b"), version("c")))
        properties = 3 * len("oft")
        patch.setattr(registry, "SCHEMA_VERSIONS_BYTES_MAX", used + properties)
        with pytest.raises(IncompatibleSchemaError, match="All versions of the topic's schema"):
            await registry_.register("a", "b", "c")
        assert await registry_.register("c") == 2


@simulated
async def test_properties_and_versions_before_a_deletion_take_room_too(registry_: Fixture) -> None:
    def with_note(name: str, note: str) -> SchemaData:
        return replace(version(name), properties={"note": note})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "SCHEMA_VERSIONS_BYTES_MAX", 1000)
        with pytest.raises(IncompatibleSchemaError, match=r"at most 1000 .*force=true"):
            await registry_.schemas.register(NAME, with_note("a", "x" * 1000), S.ALWAYS_COMPATIBLE)
        await registry_.schemas.register(NAME, with_note("a", "x" * 700), S.ALWAYS_COMPATIBLE)
        await registry_.schemas.delete(NAME)
        with pytest.raises(IncompatibleSchemaError, match="All versions of the topic's schema"):
            await registry_.schemas.register(NAME, with_note("b", "x" * 300), S.ALWAYS_COMPATIBLE)
        await registry_.schemas.erase(NAME)
        await registry_.schemas.register(NAME, with_note("b", "x" * 300), S.ALWAYS_COMPATIBLE)


@simulated
async def test_as_many_topics_have_schemas_as_the_namespace_may_have_topics(
    registry_: Fixture,
) -> None:
    async def two(_: TopicName) -> int:
        return 2

    schemas = Schemas(registry_.metadata, registry_.runtime, RunQueue(registry_.runtime.clock), two)
    for name in ("one", "other", AUDIT_TOPIC, "public/elsewhere/third"):
        await schemas.register(TopicName.parse(name), version("a"), S.FULL)
    with pytest.raises(IncompatibleSchemaError, match=r"raise maxTopicsPerNamespace.*force=true"):
        await schemas.register(TopicName.parse("third"), version("a"), S.FULL)
    assert await schemas.register(TopicName.parse("one"), version("a", "b"), S.FULL) == 1
    await schemas.erase(TopicName.parse("one"))
    await schemas.register(TopicName.parse("third"), version("a"), S.FULL)


@simulated
async def test_what_is_stored_at_most_fits_the_metadata_store(registry_: Fixture) -> None:
    text = '{"type":"record","name":"R","fields":[]'
    data = text.encode().ljust(SCHEMA_BYTES_MAX - 1) + b"}"
    properties = {"k": "\1" * (SCHEMA_PROPERTIES_BYTES_MAX - 1)}
    schema = SchemaData(SchemaType.AVRO, data, properties)
    assert await registry_.schemas.register(NAME, schema, S.FULL) == 0
    assert (await registry_.schemas.get(NAME)).schema == schema
    line = len((await registry_.metadata.get(PATH)).value)  # type: ignore[union-attr]
    assert line * registry.SCHEMA_VERSIONS_MAX < METADATA_VALUE_BYTES_MAX


@simulated
async def test_large_definitions_are_compared_one_at_a_time(registry_: Fixture) -> None:
    """The virtual worker runs jobs in order; here it counts how many wait for it."""
    waiting = most = 0
    submitted = asyncio.Event()
    worker = registry_.runtime.new_worker("x")

    class Counting:
        def submit(self, job, done) -> None:  # type: ignore[no-untyped-def]
            nonlocal waiting, most
            submitted.set()
            waiting += 1
            most = max(most, waiting)

            def ended(result: object, error: BaseException | None) -> None:
                nonlocal waiting
                waiting -= 1
                done(result, error)

            worker.submit(job, ended)

        def close(self) -> None:
            worker.close()

    runtime = replace(registry_.runtime, new_worker=lambda name: Counting())
    schemas = Schemas(registry_.metadata, runtime, RunQueue(runtime.clock))
    large = [f"field_number_{i}" for i in range(300)]
    assert len(version(*large).data) > registry.SCHEMA_ON_THE_LOOP_BYTES_MAX
    asked = [asyncio.create_task(schemas.register(NAME, version(*large), S.FULL)) for _ in range(5)]
    await submitted.wait()
    asked[0].cancel()
    done = await asyncio.gather(*asked, return_exceptions=True)
    assert done[1:] == [0, 0, 0, 0]
    assert isinstance(done[0], asyncio.CancelledError)
    assert most == 1


@simulated
async def test_small_schemas_that_come_at_once_are_parsed_some_in_a_turn(
    registry_: Fixture,
) -> None:
    clock = TickingClock(TURN_SECONDS / 4)  # parsing one takes as long
    schemas = Schemas(registry_.metadata, registry_.runtime, RunQueue(clock))
    turns = most = parsed = 0

    def counted(schema: SchemaData) -> Parsed:
        nonlocal parsed
        parsed += 1
        return parse(schema)

    with patch("pulsark.schemas.parsed.parse", counted):
        asked = [asyncio.create_task(schemas.version_of(NAME, version(f"f{n}"))) for n in range(40)]
        await asyncio.sleep(0)
        assert parsed < 39
        asked[-1].cancel()  # its client is gone
        while parsed < 39:
            before, turns = parsed, turns + 1
            await asyncio.sleep(0)
            most = max(most, parsed - before)
        await asyncio.wait(asked)
    assert most <= 5
    assert turns < 20
    assert parsed == 39
