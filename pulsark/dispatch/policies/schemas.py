"""The registry: the schemas of topics in numbered versions, shared by all partitions.

A topic has one document that lists its versions, at ``/schemas/<tenant>/<namespace>/<topic>``,
and below it one for each definition, under a random name of its own. A version exists once a
compare-and-set of the list names its definition, so of two clients that register one schema at
the same time the second finds it in the list. Definitions never change: what is listed can be
read without a lock.

A deletion is a version too, without a definition. Earlier versions can still be read by number,
because messages carry it, but have no other effect.
"""

from __future__ import annotations

import asyncio
import base64
import json
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pulsark.dispatch.loop.request_turns import LargeJobs
from pulsark.errors import BadVersionError, ClientError, ServerError
from pulsark.limits import (
    SCHEMA_ON_THE_LOOP_BYTES_MAX,
    SCHEMA_VERSIONS_BYTES_MAX,
    SCHEMA_VERSIONS_MAX,
)
from pulsark.metadata.paths import namespace_schemas_path, schemas_path
from pulsark.metadata.resources import is_system_topic
from pulsark.metadata.store import ABSENT, MetadataStore
from pulsark.schemas.definition import IncompatibleSchemaError, SchemaData, SchemaType
from pulsark.schemas.strategies import SchemaCompatibilityStrategy, relevant
from pulsark.security.effects import Changed, report
from pulsark.wire import pulsar_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from pulsark.dispatch.loop.run_queue import RunQueue
    from pulsark.runtime import Runtime
    from pulsark.schemas.parsed import Parsed
    from pulsark.wire.topic_name import TopicName

T = TypeVar("T")

FORMAT_VERSION = 1
NO_VERSION = -1


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """A schema of a topic with its version and the time it was registered at (epoch ms)."""

    version: int
    schema: SchemaData
    timestamp: int


@dataclass(frozen=True, slots=True)
class _Version:
    """A line of the list; a deletion has no definition. ``size`` is what the rest takes, in bytes.

    Lines of earlier releases do not count the properties.
    """

    type: SchemaType
    fingerprint: str
    definition: str
    size: int
    timestamp: int

    @property
    def is_deletion(self) -> bool:
        return not self.definition


class _Versions:
    """The list of a topic as it was read; ``stored`` is its version in the metadata store."""

    def __init__(self, listed: Sequence[_Version], stored: int) -> None:
        self.listed = listed
        self.stored = stored
        deletions = [n for n, line in enumerate(listed) if line.is_deletion]
        self.first_live = deletions[-1] + 1 if deletions else 0

    @property
    def live(self) -> range:
        """The versions since the last deletion, ascending."""
        return range(self.first_live, len(self.listed))

    def find(self, parsed: Parsed) -> list[int]:
        """Return the live versions that mean the same, ascending."""
        return [n for n in self.live if self.listed[n].fingerprint == parsed.fingerprint]

    def check_room(self, size: int) -> None:
        """Raise ``IncompatibleSchemaError`` if no version of this size may be added."""
        if len(self.listed) >= SCHEMA_VERSIONS_MAX:
            raise IncompatibleSchemaError(
                f"The topic's schema has {SCHEMA_VERSIONS_MAX} versions, the most allowed; "
                "delete it with force=true to begin anew"
            )
        size += sum(line.size for line in self.listed)  # a deletion keeps those before it
        if size > SCHEMA_VERSIONS_BYTES_MAX:
            raise IncompatibleSchemaError(
                f"All versions of the topic's schema would have {size} bytes; at most "
                f"{SCHEMA_VERSIONS_BYTES_MAX} are allowed. Delete it with force=true to begin anew"
            )


class _ErasedError(ClientError):
    """The definition went away after its list was read."""


class Schemas:
    """Reads, compares and registers schemas. All raise ``ClientError`` for what clients cause."""

    def __init__(
        self,
        metadata: MetadataStore,
        runtime: Runtime,
        run_queue: RunQueue,
        most_topics: Callable[[TopicName], Awaitable[int]] | None = None,
    ) -> None:
        """``most_topics`` returns how many topics a topic's namespace may have; 0: no limit."""
        self._most_topics = most_topics
        self._metadata = metadata
        self._runtime = runtime
        self._run_queue = run_queue
        self._jobs = LargeJobs(runtime, "schemas")

    def close(self) -> None:
        """End the thread that compares schemas, if there is one."""
        self._jobs.close()

    # -- reading ---

    async def get(self, topic: TopicName, version: int | None = None) -> StoredSchema:
        """A version of a topic's schema, or the newest; none of before a deletion.

        ``ClientError(TopicNotFound)``.
        """
        versions = await self._versions(topic)
        number = len(versions.listed) - 1 if version is None else version
        if number in versions.live:
            return await self._read(topic, versions, number)
        what = "schema" if version is None else f"version {version} of a schema"
        raise ClientError(ServerError.TopicNotFound, f"Topic {topic.base} has no {what}")

    async def all(self, topic: TopicName) -> list[StoredSchema]:
        """The versions since the last deletion, ascending."""
        versions = await self._versions(topic)
        return [await self._read(topic, versions, number) for number in versions.live]

    async def by_version(self, topic: TopicName) -> list[tuple[bytes, SchemaData]]:
        """All versions that messages may carry, ascending, also those before a deletion."""
        versions = await self._versions(topic)
        found = []
        for number, line in enumerate(versions.listed):
            if not line.is_deletion:
                with suppress(_ErasedError):
                    stored = await self._read(topic, versions, number)
                    found.append((encode_version(number), stored.schema))
        return found

    async def exist(self, topic: TopicName) -> bool:
        """Whether a topic has a schema."""
        return bool((await self._versions(topic)).live)

    async def version_of(self, topic: TopicName, schema: SchemaData) -> int:
        """The version that a schema is registered as; ``NO_VERSION`` if it is not."""
        parsed = await self._parse(schema)
        found = await self._find(topic, await self._versions(topic), parsed)
        return NO_VERSION if found is None else found

    async def check(
        self, topic: TopicName, schema: SchemaData, strategy: SchemaCompatibilityStrategy
    ) -> None:
        """Raise ``IncompatibleSchemaError`` unless a schema may follow the existing ones."""
        parsed = await self._parse(schema)
        await self._compare(topic, await self._versions(topic), parsed, strategy)

    # -- changes ---

    async def register(
        self,
        topic: TopicName,
        schema: SchemaData,
        strategy: SchemaCompatibilityStrategy,
        *,
        may_add: bool = True,
    ) -> int:
        """The version of a schema, which is added if it is new, ``may_add`` and compatible."""
        parsed = await self._parse(schema)
        while True:
            versions = await self._versions(topic)
            found = await self._find(topic, versions, parsed)
            if found is not None:
                return found
            if not may_add:
                raise IncompatibleSchemaError(
                    "Schema not found and schema auto updating is disabled."
                )
            versions.check_room(_size(schema))
            if versions.stored == ABSENT:
                await self._check_topics(topic)
            with suppress(BadVersionError, _ErasedError):  # others were quicker: look again
                await self._compare(topic, versions, parsed, strategy)
                return await self._add(topic, versions, schema, parsed)

    async def _check_topics(self, topic: TopicName) -> None:
        """Raise ``IncompatibleSchemaError`` if no further topic of a namespace may have a schema.

        A schema may come before its topic, so the limit of topics alone would not bound them.
        """
        if self._most_topics is None or is_system_topic(str(topic)):
            return
        most = await self._most_topics(topic)
        if most <= 0:
            return
        named = await self._metadata.children(namespace_schemas_path(topic.namespace_name))
        if len(named) >= most:
            raise IncompatibleSchemaError(
                f"{most} topics of {topic.namespace_name} have schemas, and it may have as many "
                "topics: raise maxTopicsPerNamespace, or delete a schema with force=true"
            )

    async def _find(self, topic: TopicName, versions: _Versions, parsed: Parsed) -> int | None:
        """Return the live version that reads the same payloads in the same way, or None."""
        for found in versions.find(parsed):
            if not parsed.field_numbers:
                return found
            with suppress(_ErasedError):
                stored = await self._parse((await self._read(topic, versions, found)).schema)
                if stored.field_numbers == parsed.field_numbers:
                    return found
        return None

    async def _add(
        self, topic: TopicName, versions: _Versions, schema: SchemaData, parsed: Parsed
    ) -> int:
        name = f"{self._runtime.rng.getrandbits(128):032x}"
        path = f"{schemas_path(topic)}/{name}"
        record = {
            "version": FORMAT_VERSION,
            "data": base64.b64encode(schema.data).decode(),
            "properties": dict(schema.properties),
        }
        await self._metadata.put(path, json.dumps(record, ensure_ascii=False).encode(), ABSENT)
        line = _Version(
            schema.type, parsed.fingerprint, name, _size(schema), self._runtime.clock.now_ms()
        )
        try:
            added = await self._append(topic, versions, line)
        except BadVersionError:
            await self._metadata.delete(path)
            raise
        report(Changed.SCHEMA_ADDED, topic)
        return added

    async def delete(self, topic: TopicName) -> int:
        """Delete a topic's schema. Returns the version that says so; without any ``NO_VERSION``."""
        while True:
            versions = await self._versions(topic)
            if not versions.live:
                return len(versions.listed) - 1
            line = _Version(SchemaType.NONE, "", "", 0, self._runtime.clock.now_ms())
            with suppress(BadVersionError):
                deleted = await self._append(topic, versions, line)
                report(Changed.SCHEMA_DELETED, topic)
                return deleted

    async def erase(self, topic: TopicName) -> None:
        """Remove all versions as if there had been none. The next one is 0 again.

        A deletion mark comes first and the list is deleted last: an interrupted removal can be
        repeated, and leaves no unknown definition.
        """
        while True:
            await self.delete(topic)
            versions = await self._versions(topic)
            if versions.stored == ABSENT:
                return
            if versions.live:
                continue
            for line in versions.listed:
                if not line.is_deletion:
                    with suppress(BadVersionError):  # it went before
                        await self._metadata.delete(f"{schemas_path(topic)}/{line.definition}")
            with suppress(BadVersionError):
                await self._metadata.delete(schemas_path(topic), versions.stored)
                return

    # -- documents ---

    async def _versions(self, topic: TopicName) -> _Versions:
        found = await self._metadata.get(schemas_path(topic))
        if found is None:
            return _Versions((), ABSENT)
        return _Versions([_line(r) for r in json.loads(found.value)["versions"]], found.version)

    async def _append(self, topic: TopicName, versions: _Versions, line: _Version) -> int:
        lines = [_line_json(each) for each in (*versions.listed, line)]
        record = {"version": FORMAT_VERSION, "versions": lines}
        value = json.dumps(record, separators=(",", ":")).encode()
        await self._metadata.put(schemas_path(topic), value, versions.stored)
        return len(versions.listed)

    async def _read(self, topic: TopicName, versions: _Versions, number: int) -> StoredSchema:
        line = versions.listed[number]
        found = await self._metadata.get(f"{schemas_path(topic)}/{line.definition}")
        if found is None:
            raise _ErasedError(ServerError.TopicNotFound, f"Topic {topic.base} has no schema")
        record = json.loads(found.value)
        data = base64.b64decode(record["data"])
        schema = SchemaData(line.type, data, record["properties"])
        return StoredSchema(number, schema, line.timestamp)

    # -- decisions, in a thread when they are large ---

    async def _parse(self, schema: SchemaData) -> Parsed:
        from pulsark.schemas.parsed import parse  # for topics with schemas

        if len(schema.data) <= SCHEMA_ON_THE_LOOP_BYTES_MAX:
            return await self._on_the_loop(lambda: parse(schema))
        return await self._jobs.run(lambda: parse(schema))

    async def _compare(
        self,
        topic: TopicName,
        versions: _Versions,
        parsed: Parsed,
        strategy: SchemaCompatibilityStrategy,
    ) -> None:
        numbers = relevant(versions.live, strategy)
        needed = [n for n in numbers if versions.listed[n].fingerprint != parsed.fingerprint]
        if needed:
            from pulsark.schemas.avro_resolution import Effort
            from pulsark.schemas.compatibility import check
            from pulsark.schemas.parsed import parse

            def compare(stored: SchemaData) -> None:
                check([parse(stored)], parsed, strategy, effort)

            effort = Effort()
            for number in reversed(needed):
                stored = (await self._read(topic, versions, number)).schema
                await self._jobs.run(partial(compare, stored))

    async def _on_the_loop(self, job: Callable[[], T]) -> T:
        """Run a short job on the loop: clients may bring thousands of them at once."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._run_queue.call(partial(_settle, done, job))
        try:
            return await done
        finally:
            del done  # else an error's traceback and the future would keep each other


def _settle(done: asyncio.Future[T], job: Callable[[], T]) -> None:
    if done.cancelled():
        return
    try:
        done.set_result(job())
    except Exception as error:  # noqa: BLE001 - goes to who waits
        done.set_exception(error)
    finally:
        del done


def _size(schema: SchemaData) -> int:
    texts = (text for pair in schema.properties.items() for text in pair)
    return len(schema.data) + sum(len(text.encode()) for text in texts)


def _line(record: dict[str, Any]) -> _Version:
    return _Version(
        SchemaType[record["type"]],
        record["fingerprint"],
        record["definition"],
        record["bytes"],
        record["timestamp"],
    )


def _line_json(line: _Version) -> dict[str, object]:
    return {
        "type": line.type.name,
        "fingerprint": line.fingerprint,
        "definition": line.definition,
        "bytes": line.size,
        "timestamp": line.timestamp,
    }


# -- the binary protocol -------------------------------------------------------------------------


def from_wire(schema: pb.Schema) -> SchemaData:
    """A schema as a client sent it. Raises ``InvalidSchemaDataError``."""
    # The stubs take the list's type for the enum value of the same name.
    properties = {p.key: p.value for p in cast("Any", schema.properties)}
    return SchemaData(SchemaType.from_wire(schema.type), schema.schema_data, properties)


def to_wire(topic: TopicName, schema: SchemaData) -> pb.Schema:
    """A schema as clients get it."""
    answer = pb.Schema(name=topic.base.local, type=schema.type.on_the_wire)  # type: ignore[arg-type]
    answer.schema_data = schema.data
    for key, value in schema.properties.items():
        answer.properties.add(key=key, value=value)
    return answer


def encode_version(version: int) -> bytes:
    """A version as messages and clients carry it: 8 bytes, big-endian."""
    return version.to_bytes(8, "big")


def decode_version(version: bytes) -> int:
    """The number of a version. Raises ``IncompatibleSchemaError``."""
    if len(version) != 8:
        raise IncompatibleSchemaError(
            f"A schema version has 8 bytes, big-endian; {len(version)} came"
        )
    return int.from_bytes(version, "big", signed=True)
