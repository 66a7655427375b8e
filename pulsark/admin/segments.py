"""What a topic holds, for Spark's planner. Pulsark's own.

``{"topic", "topicId", "flightUrl", "partitions": [{"partition", "name", "topicId", "first",
"last", "trimmed", "ledgers": [{"ledgerId", "entries", "size", "open"}]}]}``: ``partition`` is -1
for a topic without partitions, ``last`` the last confirmed entry and ``trimmed`` the last one that
was deleted (-1/-1 while there is none). With ``after=LEDGER,LEDGER,...``, one number a partition
in their order, older ledgers are left out: a stream asks often, and only for what comes next.
``POST /admin/v2/spark-plans`` answers the same for many topics at once: ``{"topics": {name: [after,
...]}}`` gives ``{"topics": [...]}``.

With ``compacted=true`` a partition that was compacted has ``"compacted": {"ledgerId", "horizon",
"entries", "size"}``, too: what is left of its entries up to the horizon is in that ledger, which
stays for ``COMPACTED_HOLD_SECONDS`` after the last question about it or read from it.

``/tableFiles`` says which files of the topic's table have entries of these ledgers, for tasks that
can reach them: ``{"directories": [...], "partitions": [{"name", "ledgers": [{"ledgerId", "files":
[{"path", "entries": [first, last], "rows", "size"}]}]}]}``. Files may leave the table afterwards;
the entries can always be had over Flight.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from pulsark.admin.errors import fail
from pulsark.admin.partitioned import leaves
from pulsark.admin.paths import TOPICS
from pulsark.admin.requests import BrokerOf, TopicOf, flag, number, value
from pulsark.admin.streams import long_value
from pulsark.dispatch.broker import Broker
from pulsark.dispatch.message_count import count_messages
from pulsark.dispatch.topic import Topic
from pulsark.dispatch.turns import in_turns
from pulsark.limits import COUNTED_MESSAGES_MAX, LEDGERS_PER_TURN_MAX, READS_PER_TURN_MAX
from pulsark.storage.position import Position
from pulsark.storage.table.record import DataFile
from pulsark.wire.topic_name import TopicName

router = APIRouter(prefix=TOPICS, tags=["pulsark"])


@router.get("/{topic}/segments")
async def get_segments(topic: TopicOf, request: Request, broker: BrokerOf) -> Response:
    """The partitions of a topic with their ledgers."""
    given = request.query_params.get("after")
    after = [number(part, low=-1) for part in given.split(",")] if given else []
    return long_value(await plan_of(broker, topic, after, compacted=flag(request, "compacted")))


async def plan_of(
    broker: Broker, topic: TopicName, after: Sequence[int], *, compacted: bool = False
) -> dict[str, Any]:
    """The answer for one topic; ``after`` has a ledger for each partition."""
    found = await broker.resources.partitioned_topics.get(topic)
    names = await leaves(broker, topic)
    oldest = chain(after, repeat(0))
    partitions = []
    for name in names:
        loaded = await broker.topic(name, create=True)
        partition = await _partition(loaded, next(oldest))
        if compacted:
            partition |= await _compacted(loaded)  # of the moment at which it begins
        partitions.append(partition)
    return {
        "topic": str(topic),
        "topicId": found.topic_id if found is not None else partitions[0]["topicId"],
        "flightUrl": broker.flight_url,
        "partitions": partitions,
    }


@router.get("/{topic}/tableFiles")
async def get_table_files(topic: TopicOf, request: Request, broker: BrokerOf) -> Response:
    """The files of sealed entries, by partition and ledger; ``after`` as for the segments."""
    given = request.query_params.get("after")
    oldest = chain((number(part, low=-1) for part in given.split(",")) if given else (), repeat(0))
    directories = await broker.tables.directories(topic) if broker.tables is not None else ()
    if broker.tables is None or not directories:
        return value({"directories": [], "partitions": []})
    partitions = []
    for name, first in zip(await leaves(broker, topic), oldest, strict=False):
        ledgers = (await broker.topic(name, create=True)).ledger.each_ledger(first)
        sealed = [
            await broker.tables.sealed(name, info.ledger_id)
            async for info in in_turns(ledgers, READS_PER_TURN_MAX)
        ]
        partitions.append(
            {
                "name": str(name),
                "ledgers": [
                    file_answer(each.ledger_id, each.files) for each in sealed if each is not None
                ],
            }
        )
    return long_value({"directories": list(directories), "partitions": partitions})


def file_answer(ledger_id: int, files: Sequence[DataFile]) -> dict[str, Any]:
    """A ledger and its files."""
    return {
        "ledgerId": ledger_id,
        "files": [
            {
                "path": file.path,
                "entries": [file.first_entry_id, file.last_entry_id],
                "rows": file.rows,
                "size": file.size,
            }
            for file in files
        ],
    }


@router.get("/{topic}/messageCount")
async def count(topic: TopicOf, request: Request, broker: BrokerOf) -> Response:
    """How many messages come ``after`` a place, up to ``through`` and to ``limit``.

    Places are ``ledger:entry`` or ``ledger:entry:batchIndex``. ``{"messages", "last": {"ledgerId",
    "entryId", "batchIndex"}}``: the last message counted, which may be before both ends, because
    one call looks at a bounded number of entries. ``batchIndex`` -1 is all of the entry. With
    ``compacted=true`` places are in a compacted ledger of the topic, by its own ids.
    """
    after, after_index = _given_place(request, "after")
    through, _ = _given_place(request, "through")
    limit = number(request.query_params.get("limit", ""), low=1)
    if await broker.resources.partitioned_topics.get(topic) is not None:
        raise fail(405, "This is done on a partition, not on a partitioned topic")
    loaded = await broker.topic(topic)
    compacted = None
    if flag(request, "compacted"):
        compacted = loaded.ledger.hold_compacted(through.ledger_id)
        if compacted is None:
            raise fail(409, "The topic was compacted again")
    counted = await count_messages(
        loaded, after, after_index, through, min(limit, COUNTED_MESSAGES_MAX), compacted
    )
    last = {**_place(counted.last), "batchIndex": counted.batch_index}
    return value({"messages": counted.messages, "last": last})


def _given_place(request: Request, name: str) -> tuple[Position, int]:
    ledger_id, _, rest = request.query_params.get(name, "").partition(":")
    entry_id, _, index = rest.partition(":")
    place = Position(number(ledger_id, low=-1), number(entry_id, low=-1))
    return place, number(index, low=-1) if index else -1


async def _partition(topic: Topic, first_ledger: int) -> dict[str, Any]:
    topic.touch()
    ledger = topic.ledger
    return {
        "partition": topic.name.partition,
        "name": str(topic.name),
        "topicId": ledger.topic_id,
        "first": _place(ledger.first_position()),
        "last": _place(ledger.last_confirmed),
        "trimmed": _place(ledger.trimmed),
        "ledgers": [
            {
                "ledgerId": info.ledger_id,
                "entries": info.entries,
                "size": info.size,
                "open": info.open,
            }
            async for info in in_turns(ledger.each_ledger(first_ledger), LEDGERS_PER_TURN_MAX)
        ],
    }


async def _compacted(topic: Topic) -> dict[str, Any]:
    known = topic.ledger.compacted_to
    ledger = None if known is None else topic.ledger.hold_compacted(known.ledger_id)
    if known is None or ledger is None:
        return {}
    entries, size = await ledger.extent()
    part = {"ledgerId": known.ledger_id, "entries": entries, "size": size}
    return {"compacted": part | {"horizon": _place(known.horizon)}}


def _place(position: Position) -> dict[str, int]:
    return {"ledgerId": position.ledger_id, "entryId": position.entry_id}
