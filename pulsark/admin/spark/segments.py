"""What a topic holds, for Spark's planner. Pulsark's own.

``{"topic", "topicId", "flightUrl", "partitions": [{"partition", "name", "topicId", "first",
"last", "trimmed", "ledgers": [{"ledgerId", "entries", "size", "open"}]}]}``: ``partition`` is -1
for a topic without partitions, ``last`` the last confirmed entry and ``trimmed`` the last one that
was deleted (-1/-1 while there is none). A partition of another broker than the one that answers has
the ``flightUrl`` of that one. With ``after=LEDGER,LEDGER,...``, one number a partition
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

``/deleted/{topicId}`` says where a topic partition ended that was deleted lately: ``{"last"}``, or
404 if this is not known. The broker that deleted it remembers, until it stops.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from pulsark.admin.http.broker_calls import call_of
from pulsark.admin.http.errors import fail
from pulsark.admin.http.guard import Guarded, RightsOf, in_body, topic
from pulsark.admin.http.paths import TOPICS
from pulsark.admin.http.places import HERE, OWNER
from pulsark.admin.http.requests import BrokerOf, TopicOf, flag, json_object, number, value
from pulsark.admin.http.streams import long_value
from pulsark.admin.pulsar.partitioned import leaves
from pulsark.dispatch.broker import Broker
from pulsark.dispatch.loop.request_turns import pause
from pulsark.dispatch.loop.turns import in_turns
from pulsark.dispatch.topic.message_count import count_messages
from pulsark.dispatch.topic.topic import Topic
from pulsark.errors import ClientError, ServerError
from pulsark.limits import (
    COUNTED_MESSAGES_MAX,
    LEDGERS_PER_TURN_MAX,
    PLANNED_TOPICS_MAX,
    READS_PER_TURN_MAX,
)
from pulsark.security.operations import TopicOperation as T
from pulsark.storage.table.files.record import DataFile
from pulsark.wire.message_id import MessageId
from pulsark.wire.topic_name import TopicName

router = Guarded(prefix=TOPICS, tags=["pulsark"])
plans = Guarded(prefix="/admin/v2/spark-plans", tags=["pulsark"])
"""The segments of many topics at once, for queries with a pattern."""

_TOPICS_AT_ONCE = 50


@router.get("/{topic}/segments", needs=topic(T.GET_STATS), at=HERE)
async def get_segments(topic: TopicOf, request: Request, broker: BrokerOf) -> Response:
    """The partitions of a topic with their ledgers."""
    given = request.query_params.get("after")
    after = [number(part, low=-1) for part in given.split(",")] if given else []
    compacted = flag(request, "compacted")
    return long_value(await plan_of(broker, request, topic, after, compacted=compacted))


async def plan_of(
    broker: Broker,
    request: Request,
    topic: TopicName,
    after: Sequence[int],
    *,
    compacted: bool = False,
) -> dict[str, Any]:
    """The answer for one topic; ``after`` has a ledger for each partition."""
    found = await broker.resources.partitioned_topics.get(topic)
    names = await leaves(broker, topic)
    oldest = chain(after, repeat(0))
    scheme = request.url.scheme
    partitions = []
    for name in names:
        first = next(oldest)
        query = f"segments?after={first}&compacted={str(compacted).lower()}"
        told = await _told_elsewhere(broker, request, name, query)
        if told is not None:
            answer, broker_id = told
            (partition,) = answer["partitions"]
            live = broker.registry.get(broker_id)
            url = answer["flightUrl"] if live is None else live.urls.flight_for(scheme)
            partitions.append({**partition, "flightUrl": url})
            continue
        loaded = await broker.topics.load(name, create=True)
        partition = await _partition(loaded, first)
        if compacted:
            partition |= await _compacted(loaded)  # of the moment at which it begins
        partitions.append(partition)
    return {
        "topic": str(topic),
        "topicId": found.topic_id if found is not None else partitions[0]["topicId"],
        "flightUrl": broker.urls.flight_for(scheme),
        "partitions": partitions,
    }


async def _told_elsewhere(
    broker: Broker, request: Request, name: TopicName, what: str
) -> tuple[Any, str] | None:
    """What another broker says of a partition that it owns, and its id. Who is asked so by a broker
    asks no further."""
    elsewhere = None if call_of(request) is not None else broker.topics_elsewhere()
    return None if elsewhere is None else await elsewhere.told(name, what)


@router.get("/{topic}/tableFiles", needs=topic(T.PEEK_MESSAGES), at=HERE)
async def get_table_files(topic: TopicOf, request: Request, broker: BrokerOf) -> Response:
    """The files of sealed entries, by partition and ledger; ``after`` as for the segments."""
    given = request.query_params.get("after")
    oldest = chain((number(part, low=-1) for part in given.split(",")) if given else (), repeat(0))
    directories = await broker.tables.directories(topic)
    if not directories:
        return value({"directories": [], "partitions": []})
    partitions = []
    for name, first in zip(await leaves(broker, topic), oldest, strict=False):
        told = await _told_elsewhere(broker, request, name, f"tableFiles?after={first}")
        if told is not None:
            partitions += told[0]["partitions"]
            continue
        ledgers = (await broker.topics.load(name, create=True)).ledger.each_ledger(first)
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


@router.get("/{topic}/deleted/{topic_id}", needs=topic(T.GET_STATS), at=OWNER)
async def get_deleted(topic: TopicOf, topic_id: str, broker: BrokerOf) -> Response:
    """The last entry of a topic that was deleted, by the id that it had."""
    last = broker.deletion.ended.last_entry(topic, topic_id)
    if last is None:
        raise fail(404, f"It is not known where {topic} ended that had this id")
    return value({"last": last.to_json()})


@plans.post("", needs=in_body(T.PEEK_MESSAGES), at=HERE)
async def get_plans(request: Request, broker: BrokerOf, rights: RightsOf) -> Response:
    """The segments of several topics; those that do not exist are left out."""
    asked = await json_object(request)
    wanted, compacted = asked.get("topics"), asked.get("compacted") is True
    if not isinstance(wanted, dict) or len(wanted) > PLANNED_TOPICS_MAX:
        raise fail(412, f"topics: an object of at most {PLANNED_TOPICS_MAX} topics is expected")
    found = []
    for count, (name, after) in enumerate(wanted.items(), 1):
        if not isinstance(after, list) or not all(type(each) is int for each in after):
            raise fail(400, f"{name[:100]}: a list of ledger ids is expected")
        topic_name = TopicName.parse(name)
        await rights.check_topic(T.PEEK_MESSAGES, topic_name)
        try:
            found.append(await plan_of(broker, request, topic_name, after, compacted=compacted))
        except ClientError as error:
            if error.code is not ServerError.TopicNotFound:
                raise
        if count % _TOPICS_AT_ONCE == 0:
            await pause()  # those that are loaded are answered without a pause
    return long_value({"topics": found})


@router.get("/{topic}/messageCount", needs=topic(T.GET_STATS), at=OWNER)
async def count(topic: TopicOf, request: Request, broker: BrokerOf) -> Response:
    """How many messages come ``after`` a place, up to ``through`` and to ``limit``.

    Places are ``ledger:entry`` or ``ledger:entry:batchIndex``. ``{"messages", "last"}``: how many,
    and the id of the last message counted, which may be before both ends, because one call looks
    at a bounded number of entries. ``batchIndex`` -1 is all of the entry. With ``compacted=true``
    places are in a compacted ledger of the topic, by its own ids.
    """
    after, through = _message_id(request, "after"), _message_id(request, "through").position
    limit = number(request.query_params.get("limit", ""), low=1)
    if await broker.resources.partitioned_topics.get(topic) is not None:
        raise fail(405, "This is done on a partition, not on a partitioned topic")
    loaded = await broker.topics.load(topic)
    compacted = None
    if flag(request, "compacted"):
        compacted = loaded.ledger.compacted.retain(through.ledger_id)
        if compacted is None:
            raise fail(409, "The topic was compacted again")
    counted = await count_messages(
        loaded, after, through, min(limit, COUNTED_MESSAGES_MAX), compacted
    )
    return value({"messages": counted.messages, "last": counted.last.to_json()})


def _message_id(request: Request, name: str) -> MessageId:
    try:
        return MessageId.parse(request.query_params.get(name, ""))
    except ValueError as error:
        raise fail(404, f"{name}: {error}") from None


async def _partition(topic: Topic, first_ledger: int) -> dict[str, Any]:
    topic.touch()
    ledger = topic.ledger
    return {
        "partition": topic.name.partition,
        "name": str(topic.name),
        "topicId": ledger.topic_id,
        "first": ledger.first_position().to_json(),
        "last": ledger.last_confirmed.to_json(),
        "trimmed": ledger.record.trimmed.to_json(),
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
    known = topic.ledger.compacted.to
    ledger = None if known is None else topic.ledger.compacted.retain(known.ledger_id)
    if known is None or ledger is None:
        return {}
    entries, size = await ledger.extent()
    part = {"ledgerId": known.ledger_id, "entries": entries, "size": size}
    return {"compacted": part | {"horizon": known.horizon.to_json()}}
