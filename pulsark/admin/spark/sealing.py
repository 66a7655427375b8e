"""Plans and attaches for the job that seals ledgers. Pulsark's own.

``POST /admin/v2/sealing/plan`` with ``{"topics": [name], "everything": false, "leaseSeconds": 600,
"rangeBytes": 67108864, "runner": "nightly"}`` answers ``{"flightUrl", "tables": [{"topic",
"tableId", "roots", "rootsNeeded", "targetFileBytes", "values", "ranges": [{"name", "topicId",
"partition", "ledgerId", "first", "last", "size", "attempt"}]}], "more"}``; without topics it is
about all that are loaded. With ``more`` there may be another plan after this one. With several
brokers each range has the ``flightUrl`` of the broker that serves it. ``POST
.../{topic}/attach`` with ``{"tableId", "files", "value"}`` makes files part of a topic, as
``docs/formats/table.md`` has them in an intent; ``value`` is the ``type`` in the plan's ``values``.

``GET /admin/v2/sealing/copies?topic=&after=`` answers ``{"roots": {path: why it is refused, or
empty}, "tables": [{"topic", "directories", "wanted", "logs": {directory: state}, "ledgers":
[{"ledgerId", "partition", "entries", "files", "copies": {directory: [state of each file]}}]}],
"next"}``: a table is in ``directories``, and should be in those ``wanted``. ``POST
.../{topic}/table/directories`` with ``{"directories": wanted}`` says that it is, ``POST
/admin/v2/sealing/recovered`` with ``{"root", "after"}`` completes the logs on a root that has all
files again, of tables after a name, and puts it in service; it answers ``{"tables", "next"}``, and
is to be asked for the rest with ``next`` unless that is empty. 409: files are missing there; look
again.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from pulsark.admin.http.broker_calls import call_of, check_is_broker
from pulsark.admin.http.errors import fail
from pulsark.admin.http.guard import Guarded, superuser, topic
from pulsark.admin.http.merging import all_done
from pulsark.admin.http.paths import TOPICS
from pulsark.admin.http.places import HERE, OWNER_OF_BASE, EachBroker, EachPartition
from pulsark.admin.http.requests import (
    BrokerOf,
    TopicOf,
    done,
    integer,
    json_object,
    strings,
    value,
)
from pulsark.admin.http.spreading import Part, failure
from pulsark.admin.pulsar.partitioned import leaves
from pulsark.dispatch.broker import Broker
from pulsark.dispatch.tables.far_tables import FarAttach
from pulsark.dispatch.tables.sealed_copies import TableCopies
from pulsark.dispatch.tables.sealing_jobs import TABLES_A_PLAN_MAX, PlannedTable
from pulsark.dispatch.tables.table_calls import CROWDED
from pulsark.errors import CrowdedTableError, NotAttachedError
from pulsark.schemas.columns import is_column_type
from pulsark.security.operations import TopicOperation as T
from pulsark.storage.table.files.record import DataFile
from pulsark.wire.topic_name import TopicName

router = Guarded(at=OWNER_OF_BASE, tags=["pulsark"])

LEASE_SECONDS = 600
RANGE_BYTES = 64 << 20
RUNNER_CHARS_MAX = 256


def _one_plan(broker: Broker, request: Request, parts: Sequence[Part]) -> Response:
    """Each broker plans for its partitions, and serves them over Flight."""
    failed = failure(parts)
    if failed is not None:
        return failed
    tables: dict[str, Any] = {}
    for part in parts:
        live = broker.registry.get(part.json["broker"])
        url = (broker.urls if live is None else live.urls).flight_for(request.url.scheme)
        for table in part.json["tables"]:
            ranges = [{**each, "flightUrl": url} for each in table["ranges"]]
            known = tables.setdefault(table["topic"], {**table, "ranges": []})
            known["ranges"] += ranges
    return value(
        {
            "flightUrl": broker.urls.flight_for(request.url.scheme),
            "tables": list(tables.values()),
            "more": any(part.json["more"] for part in parts),
        }
    )


@router.post("/admin/v2/sealing/plan", needs=superuser, at=EachBroker(_one_plan))
async def plan(request: Request, broker: BrokerOf) -> Response:
    """The ranges to seal and where they go; no other runner gets them while the lease lasts."""
    wanted = await json_object(request)
    names = [TopicName.parse(name).base for name in strings(wanted.get("topics"), "topics")]
    everything = wanted.get("everything", False)
    if not isinstance(everything, bool):
        raise fail(400, "everything is true or false")
    runner = wanted.get("runner", "")
    if not isinstance(runner, str) or len(runner) > RUNNER_CHARS_MAX:
        raise fail(400, f"runner is a text of at most {RUNNER_CHARS_MAX} characters")
    lease = integer(wanted.get("leaseSeconds"), "leaseSeconds", LEASE_SECONDS)
    size = integer(wanted.get("rangeBytes"), "rangeBytes", RANGE_BYTES)
    if size < 1 << 20:
        raise fail(412, "rangeBytes is at least 1048576, a row group")
    found = await broker.sealing.jobs.plan(
        names, runner, everything=everything, lease_seconds=lease, range_bytes=size
    )
    return value(
        {
            "flightUrl": broker.urls.flight_for(request.url.scheme),
            "tables": [_shown(table) for table in found],
            "more": len(found) == TABLES_A_PLAN_MAX,
            **({} if call_of(request) is None else {"broker": broker.registry.own_id}),
        }
    )


def _shown(table: PlannedTable) -> dict[str, Any]:
    return {
        "topic": str(table.base),
        "tableId": table.table_id,
        "roots": list(table.roots),
        "rootsNeeded": table.roots_needed,
        "targetFileBytes": table.target_file_bytes,
        "values": table.values.encode().decode(),
        "ranges": [
            {
                "name": str(planned.name),
                "topicId": planned.topic_id,
                "partition": planned.wanted.partition,
                "ledgerId": planned.wanted.ledger_id,
                "first": planned.wanted.first,
                "last": planned.wanted.last,
                "size": planned.wanted.size,
                "attempt": planned.attempt,
            }
            for planned in table.ranges
        ],
    }


def _same(broker: Broker, request: Request, parts: Sequence[Part]) -> Response:
    """All partitions have the table of their topic; each owner knows now that it is read."""
    return failure(parts) or value(parts[0].json)


@router.get(TOPICS + "/{topic}/table", needs=topic(T.GET_STATS), at=EachPartition(_same))
async def table(topic: TopicOf, broker: BrokerOf) -> Response:
    """Where the topic's Delta table is; 404 until something is sealed."""
    await leaves(broker, topic)
    broker.sealing.reads.is_read(topic.base)
    state = await broker.sealing.table(topic.base)
    if state is None:
        raise fail(
            404,
            "Nothing of the topic is sealed yet: seal it, or wait as its policy says",
        )
    return value(
        {
            "topic": str(topic.base),
            "uri": state.directories[0],
            "directories": list(state.directories),
            "files": state.files,
            "rows": state.rows,
            "bytes": state.size,
            "changedByOthers": [
                {
                    "directory": other.directory,
                    "version": other.version,
                    "timeMs": other.time_ms,
                    "what": other.what,
                }
                for other in state.others
            ],
        }
    )


@router.post(TOPICS + "/{topic}/seal", needs=topic(T.SEAL), at=EachPartition(all_done))
async def seal(topic: TopicOf, broker: BrokerOf) -> Response:
    """Seal everything that is published by now; it is in the table when this returns.

    A partition is sealed with all others of its topic, unless other brokers have some of them.
    """
    whole = topic.base if broker.other_brokers() is None else topic
    topics = [await broker.topics.load(leaf, create=False) for leaf in await leaves(broker, whole)]
    await broker.sealing.seal(topic.base, topics, everything=True)
    return done()


@router.post(TOPICS + "/{topic}/attach", needs=superuser)
async def attach(topic: TopicOf, request: Request, broker: BrokerOf) -> Response:
    """Make files part of a topic; ``{"attach": number}``. 409: plan anew."""
    given = await json_object(request)
    files = given.get("files")
    if not isinstance(files, list):
        raise fail(400, "files is a list")
    try:
        parsed = [DataFile.from_json(file) for file in files]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise fail(400, f"files: a file is not as it should be: {error!r}") from None
    kind = given.get("value")
    if kind is not None and not is_column_type(kind):
        raise fail(400, "value is the type in the plan's values")
    if given.get("claims") is not None:
        check_is_broker(request)
        claims = {int(partition): version for partition, version in given["claims"].items()}
        asked = FarAttach(topic.base, str(given.get("tableId")), parsed, kind, claims)
        try:
            await broker.sealing.for_others.attach(asked)
        except NotAttachedError as error:
            raise fail(409, str(error)) from None
        except CrowdedTableError as error:
            raise fail(CROWDED, str(error)) from None
        return done()
    try:
        number = await broker.sealing.jobs.attach(
            topic.base, str(given.get("tableId")), parsed, kind
        )
    except (NotAttachedError, CrowdedTableError) as error:
        raise fail(409, f"{error}; plan anew") from None
    return value({"attach": number})


@router.post(TOPICS + "/{topic}/table/reserved", needs=superuser)
async def reserved(topic: TopicOf, request: Request, broker: BrokerOf) -> Response:
    """Which of a partition's reserved ledgers exist. For the broker that owns the partition."""
    check_is_broker(request)
    given = await json_object(request)
    found = await broker.sealing.for_others.existing(topic, given["tableId"], given["ledgers"])
    return value({"existing": sorted(found)})


@router.get("/admin/v2/sealing/copies", needs=superuser, at=HERE)
async def copies(request: Request, broker: BrokerOf) -> Response:
    """On which roots the files of sealed ledgers are, as far as their sizes tell."""
    found = broker.sealing.copies
    names = [TopicName.parse(name).base for name in request.query_params.getlist("topic")]
    tables, following = await found.page(names, request.query_params.get("after", ""))
    return value(
        {
            "roots": await found.roots(),
            "tables": [_shown_copies(table) for table in tables],
            "next": following,
        }
    )


def _shown_copies(table: TableCopies) -> dict[str, Any]:
    states = {directory: iter(found) for directory, found in table.states.items()}
    return {
        "topic": str(table.name),
        "directories": list(table.directories),
        "wanted": list(table.wanted),
        "logs": dict(table.logs),
        "ledgers": [
            {
                "ledgerId": ledger.ledger_id,
                "partition": ledger.partition,
                "entries": ledger.through + 1,
                "files": [file.to_json() for file in ledger.files],
                "copies": {
                    directory: list(islice(rest, len(ledger.files)))
                    for directory, rest in states.items()
                },
            }
            for ledger in table.ledgers
        ],
    }


@router.post("/admin/v2/sealing/recovered", needs=superuser, at=HERE)
async def recovered(request: Request, broker: BrokerOf) -> Response:
    """A root has all its files again; ``{"tables": number, "next": name}``."""
    given = await json_object(request)
    root, after = given.get("root"), given.get("after", "")
    if not isinstance(root, str) or not isinstance(after, str):
        raise fail(400, "root is the path of a storage root, and after the name of a topic")
    tables, following = await broker.sealing.copies.put_in_service(root, after)
    return value({"tables": tables, "next": following})


@router.post(TOPICS + "/{topic}/table/directories", needs=superuser)
async def place(topic: TopicOf, request: Request, broker: BrokerOf) -> Response:
    """A table is in other directories from now on, which have all its files."""
    given = (await json_object(request)).get("directories")
    await broker.sealing.copies.place(topic.base, strings(given, "directories"))
    return done()
