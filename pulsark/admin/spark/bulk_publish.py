"""Bulk publish: rows become ledgers of a topic, in all its partitions at once. Pulsark's own.

A writer asks where to stage its files (``GET .../bulkPublish``), writes them, and publishes them
under an id of its own and a number that rises (``PUT .../bulkPublish/{id}/{number}``). The same
again is answered as the first time and does nothing. ``docs/formats/table.md`` has the files.
"""

from __future__ import annotations

import json
import re
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from pulsark.admin.http.broker_calls import check_is_broker
from pulsark.admin.http.errors import fail
from pulsark.admin.http.guard import Guarded, superuser, topic
from pulsark.admin.http.paths import TOPICS
from pulsark.admin.http.places import HERE, OWNER_OF_BASE
from pulsark.admin.http.requests import (
    BrokerOf,
    TopicOf,
    done,
    flag,
    integer,
    json_object,
    json_text,
    number,
    unquoted,
    value,
)
from pulsark.dispatch.broker import Broker
from pulsark.errors import ClientError
from pulsark.schemas.column_types import BINARY
from pulsark.security.operations import TopicOperation as T
from pulsark.storage.managed_ledger.reservation import NewLedger
from pulsark.storage.table.files.table_limits import FILES_PER_PUBLISH_MAX
from pulsark.storage.table.staging.staged_ledger import StagedLedger

router = Guarded(at=OWNER_OF_BASE, prefix=TOPICS, tags=["pulsark"])

_ident = re.compile(r"[-.\w:]{1,128}", re.ASCII)


@router.get("/{topic}/bulkPublish", needs=topic(T.PRODUCE))
async def get_staging(topic: TopicOf, request: Request, broker: BrokerOf) -> Response:
    """Where the files are written, and for which topic and partitions.

    With ``schema=true`` they will have a version of the topic's schema, as some topics demand.

    ``{"topic", "topicId", "partitions", "directories", "directoriesNeeded", "values", "filesMax",
    "entryBytesMax", "timeMs"}``: each file goes to all directories, and has to be in as many as are
    needed. Its name is ``timeMs-nonce-number.parquet``. Clients cannot receive larger entries than
    ``entryBytesMax``.
    """
    with_schema = flag(request, "schema")
    found = await broker.bulk_publishing.staging(topic, with_schema=with_schema)
    largest = broker.settings.maxMessageSize
    of_topic = (await broker.policy_source.current(topic)).max_message_size
    return value(
        {
            "topic": str(topic),
            "topicId": found.topic_id,
            "partitions": found.partitions,
            "directories": found.directories,
            "directoriesNeeded": found.directories_needed,
            "values": json.loads(found.values.encode()),
            "filesMax": FILES_PER_PUBLISH_MAX,
            "entryBytesMax": min(largest, of_topic) if of_topic > 0 else largest,
            "timeMs": found.time_ms,
        }
    )


@router.get("/{topic}/bulkPublish/{ident}/{nr}", needs=topic(T.PRODUCE))
async def get_published(topic: TopicOf, ident: str, nr: str, broker: BrokerOf) -> Response:
    """``{"published"}``: whether this publish was made, or a later one under the same id."""
    made = await broker.bulk_publishing.is_published(topic, _checked(ident), number(nr))
    return value({"published": made})


@router.put("/{topic}/bulkPublish/{ident}/{nr}", needs=topic(T.PRODUCE))
async def publish(
    topic: TopicOf, ident: str, nr: str, request: Request, broker: BrokerOf
) -> Response:
    """Publish ``{"topicId", "partitions", "ledgers": [{"partition", "length", "files"}]}``.

    Ledgers of a partition follow each other as in the list, ``files`` are as in the table record
    with names in place of paths. Each may be a text of that JSON: thousands of files with their
    statistics would be more values than a body may have. ``value`` is the type of that column, if
    it is not binary.
    ``{"published"}`` is false if that was done before.
    """
    body = await json_object(request)
    staged = await broker.large_jobs.run(lambda: _ledgers(body.get("ledgers")))
    topic_id = body.get("topicId")
    if not isinstance(topic_id, str):
        raise fail(400, "topicId is a text")
    made = await _publish(broker, topic, topic_id, body, _checked(ident), number(nr), staged)
    return value({"published": made})


@router.post("/{topic}/bulkPublish/reserved", needs=superuser, at=HERE)
async def reserved(topic: TopicOf, request: Request, broker: BrokerOf) -> Response:
    """A step of another broker's publish in this one's partitions; only brokers ask for it.

    ``dispatch/tables/far_partitions`` has the steps. A partition need not be this broker's any
    more: it is found out where ledgers are reserved.
    """
    check_is_broker(request)
    asked = await json_object(request)
    others = broker.bulk_publishing.for_others
    match asked["do"]:
        case "check":
            try:
                await others.check_writable(topic, asked["partitions"])
            except ClientError as error:  # for the client, in these words
                return value({"code": error.code, "reason": str(error)})
        case "reserve":
            wanted = {n: [NewLedger(*new) for new in each] for n, each, _ in asked["partitions"]}
            rows = {n: rows for n, _, rows in asked["partitions"]}
            found = await others.reserve(topic, asked["asker"], asked["token"], wanted, rows)
            return value({"reserved": [[n, list(ids)] for n, ids in found.items()]})
        case "hold":
            await others.hold_appends(asked["token"])
        case "decide":
            await others.decide(asked["token"], asked["exist"])
    return done()


async def _publish(
    broker: Broker,
    topic: Any,
    topic_id: str,
    body: dict[str, Any],
    ident: str,
    nr: int,
    staged: list[StagedLedger],
) -> bool:
    partitions = integer(body.get("partitions"), "partitions")
    return await broker.bulk_publishing.publish(
        topic, topic_id, partitions, ident, nr, staged, body.get("value", BINARY)
    )


def _ledgers(found: Any) -> list[StagedLedger]:
    if not isinstance(found, list):
        raise fail(400, "ledgers is a list")
    try:
        ledgers = [StagedLedger.from_json(_with_files(ledger)) for ledger in found]
    except (RecursionError, KeyError, TypeError, ValueError, AttributeError) as e:
        raise fail(400, f"ledgers has one that cannot be understood: {e!r}"[:300]) from None
    files = sum(len(ledger.files) for ledger in ledgers)
    if files > FILES_PER_PUBLISH_MAX:
        raise fail(
            413,
            f"{files} files are more than {FILES_PER_PUBLISH_MAX}, which is the most that one "
            "publish may have: write fewer and larger ones",
        )
    return ledgers


def _with_files(ledger: dict[str, Any]) -> dict[str, Any]:
    files = [json_text(file) if isinstance(file, str) else file for file in ledger["files"]]
    return {**ledger, "files": files}


def _checked(ident: str) -> str:
    text = unquoted(ident)
    if not _ident.fullmatch(text):
        raise fail(412, "The id of a publish has 1 to 128 letters, digits, '-', '.', ':' or '_'")
    return text
