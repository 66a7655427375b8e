"""What jobs ask a broker to do with a topic's table, of which it is the only committer.

Pulsark's own. ``POST .../table/retention`` answers ``{"ledgers", "rows", "deletedFiles",
"keptFiles"}``; with ``dryRun=true`` nothing is done, and the numbers are what would go.

The table's broker answers, whichever broker is asked, with the help of the partitions' owners.

What may take long is *work*: ``PUT .../table/work/{id}`` begins it under an id that the caller
chose; sent again it changes nothing. It and ``GET`` answer ``{"status": RUNNING, SUCCESS or ERROR,
"result", "error"}``. The body is one of

- ``{"do": "erase", "ids": [[ledger, [[entry, [index, ...]], ...]], ...]}``, where null in place of
  indexes is the whole entry. Result: ``{"ids", "entries", "files", "missing"}``;
- ``{"do": "compact"}``: of any number of keys. Result: ``{"partitions", "removed"}``;
- ``{"do": "finishErasure", "vacuumHours": number or null}``. Result: ``{"oldFiles", "untilMs",
  "deletedFiles", "journalSegments", "consumers", "rootsAway", "bookiesAway"}``, what is still held
  where;
- ``{"do": "repair", "giveUp": false}``: make the table whole again
  (``storage/table/table_repair``). Result, and ``progress`` meanwhile: ``{"step", "files",
  "takenUp", "copied", "madeAgain", "entriesGivenUp", "filesLost", "entriesLost", "lost": [{"path",
  "partition", "ledgerId", "entries", "rows", "reason"}]}``; ``path`` is empty, and ``rows`` null,
  for entries that are in no file.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from pulsark.admin.http.broker_calls import check_is_broker
from pulsark.admin.http.errors import fail
from pulsark.admin.http.guard import Guarded, superuser
from pulsark.admin.http.paths import TOPICS
from pulsark.admin.http.places import HERE, OWNER_OF_BASE
from pulsark.admin.http.requests import (
    BrokerOf,
    TopicOf,
    flag,
    integer,
    json_object,
    number_of,
    value,
)
from pulsark.admin.pulsar.partitioned import leaves
from pulsark.admin.spark.background_work import Works
from pulsark.admin.spark.work_in_partitions import in_all_partitions, loaded
from pulsark.dispatch.broker import Broker
from pulsark.dispatch.topic.topic import Topic
from pulsark.storage.managed_ledger.erasure import erased_ids
from pulsark.storage.table.table_repair import Repair
from pulsark.wire.topic_name import TopicName

router = Guarded(at=OWNER_OF_BASE, prefix=TOPICS, tags=["pulsark"])


@router.post("/{topic}/table/retention", needs=superuser)
async def retention(topic: TopicOf, request: Request, broker: BrokerOf) -> Response:
    """Let go now what retention lets go: ledgers, their rows, and files that left long ago."""
    dry_run = flag(request, "dryRun")
    trimmed: set[int] = set()
    names = await leaves(broker, topic)
    for part in await in_all_partitions(
        broker,
        names,
        f"retention-{broker.runtime.rng.getrandbits(64):016x}",
        {"do": "trim", "dryRun": dry_run},
        partial(_trim, broker, dry_run),
    ):
        trimmed.update(part)
    return value(_shown(await broker.table_retention.apply(topic.base, trimmed, dry_run=dry_run)))


async def _trim(broker: Broker, dry_run: bool, topics: list[Topic]) -> list[int]:
    return sorted(await broker.table_retention.trim(topics, dry_run=dry_run))


@router.post("/{topic}/table/part/{ident}", needs=superuser, at=HERE)
async def part(topic: TopicOf, request: Request, broker: BrokerOf) -> Response:
    """Another broker's work in partitions of this one: begin it, or say how it goes."""
    check_is_broker(request)
    asked = await json_object(request)

    async def work() -> Any:
        if asked["do"] not in ("trim", "compact"):
            return await broker.sealing.part_works.do(topic.base, asked)
        names = [TopicName.parse(name) for name in asked["partitions"]]
        do = partial(_trim, broker, asked["dryRun"]) if asked["do"] == "trim" else _compacted
        return await do([await loaded(broker, name) for name in names])

    works: Works = request.app.state.parts_of_works
    return value(works.begin(f"{topic}/{request.path_params['ident']}", work).shown())


@router.put("/{topic}/table/work/{ident}", needs=superuser)
async def begin_work(topic: TopicOf, request: Request, broker: BrokerOf) -> Response:
    """Begin something that may take long, unless it has begun."""
    wanted = await json_object(request)
    what = str(wanted.get("do"))
    works: Works = request.app.state.works
    ident = request.path_params["ident"]
    if what == "repair":
        repair = Repair()
        do_repair = await _repair(wanted, topic, broker, repair)
        return value(works.begin(ident, do_repair, repair.to_json).shown())
    if what == "compact":
        compact = partial(_compact, broker, await leaves(broker, topic), ident)
        return value(works.begin(ident, compact).shown())
    makers: dict[str, Callable[[dict[str, Any]], Do]] = {
        "erase": _erase,
        "finishErasure": _finish,
    }
    if what not in makers:
        raise fail(400, f"do is one of compact, {', '.join(makers)}, repair")
    do = makers[what](wanted)
    await leaves(broker, topic)  # 404 if it is missing
    return value(works.begin(ident, partial(do, broker, topic.base)).shown())


async def _repair(
    wanted: dict[str, Any], topic: TopicName, broker: Broker, repair: Repair
) -> Callable[[], Awaitable[dict[str, Any]]]:
    """It loads no topic: that may be what fails as long as the table is not repaired."""
    give_up = wanted.get("giveUp", False)
    if not isinstance(give_up, bool):
        raise fail(400, "giveUp is true or false")
    await leaves(broker, topic.base)
    if not give_up and not await broker.topic_tables.has_table(topic.base):
        raise fail(
            404,
            "Nothing of the topic is sealed yet. If bookies have released entries of it all the "
            "same, its table is gone: bring a storage root back that has it, or --give-up",
        )

    async def work() -> dict[str, Any]:
        await broker.sealing.repairs.repair(topic.base, repair, give_up=give_up)
        return repair.to_json()

    return work


@router.get("/{topic}/table/work/{ident}", needs=superuser)
async def get_work(topic: TopicOf, request: Request, broker: BrokerOf) -> Response:
    """How it goes; 404 if it is not known, for instance because the broker was restarted."""
    works: Works = request.app.state.works
    found = works.get(request.path_params["ident"])
    if found is None:
        raise fail(
            404, "Nothing is known of this work: the broker was restarted, or it is long ago"
        )
    return value(found.shown())


Do = Callable[[Broker, TopicName], Awaitable[dict[str, Any]]]


def _erase(wanted: dict[str, Any]) -> Do:
    ids = erased_ids(_ids(wanted.get("ids")))

    async def do(broker: Broker, base: TopicName) -> dict[str, Any]:
        return _shown(await broker.erasure.erase(base, ids))

    return do


def _finish(wanted: dict[str, Any]) -> Do:
    hours = wanted.get("vacuumHours")
    if hours is not None:
        hours = number_of(hours, "vacuumHours")
        if hours > 1_000_000:
            raise fail(412, "vacuumHours is from 0 to 1000000")
    return partial(_finished, hours)


async def _finished(hours: float | None, broker: Broker, base: TopicName) -> dict[str, Any]:
    return _shown(await broker.erasure.finish(base, hours))


async def _compact(broker: Broker, names: list[TopicName], ident: str) -> dict[str, Any]:
    removed = await in_all_partitions(broker, names, ident, {"do": "compact"}, _compacted)
    return {"partitions": len(names), "removed": sum(removed)}


async def _compacted(topics: list[Topic]) -> int:
    return sum([await topic.compactor.run() for topic in topics])


def _ids(given: Any) -> list[tuple[int, int, int]]:
    shape = "ids is a list of [ledger, [[entry, [index, ...] or null], ...]]"
    found: list[tuple[int, int, int]] = []
    try:
        for ledger_id, entries in given:
            for entry_id, indexes in entries:
                for index in (-1,) if indexes is None else indexes:
                    numbers = (ledger_id, entry_id, index)
                    found.append(tuple(integer(n, "an id") for n in numbers))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise fail(400, shape) from None
    if any(ledger_id < 0 or entry_id < 0 or index < -1 for ledger_id, entry_id, index in found):
        raise fail(412, "ids are not below 0")
    return found


def _shown(report: Any) -> dict[str, Any]:
    """A report's fields, with names as everywhere in the admin API."""
    return {_camel(name): item for name, item in asdict(report).items()}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
