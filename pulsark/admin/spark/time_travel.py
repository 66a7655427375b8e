"""A topic's table as it was, for queries of the past. Pulsark's own.

``GET .../table/past?version=N`` answers ``{"version", "timeMs", "nowMs", "createdMs",
"directories", "partitions", "later", "laterWhole"}``: ``directories`` and ``partitions`` as
``tableFiles`` has them, with the files of that version. With ``timestamp=MS`` (epoch) it is the
last version that there was at that time; where there was none, ``version`` and ``timeMs`` are -1
and there are no partitions. ``later`` is then, in the form of ``partitions``, what was sealed after
that version of ledgers that the topic does not have any more, and ``laterWhole`` says whether that
is all there. ``createdMs`` is when the topic was made. 412: there is no such version, or its files
are gone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from fastapi import Request
from fastapi.responses import Response

from pulsark.admin.http.errors import fail
from pulsark.admin.http.guard import Guarded, topic
from pulsark.admin.http.paths import TOPICS
from pulsark.admin.http.places import OWNER_OF_BASE
from pulsark.admin.http.requests import BrokerOf, TopicOf, number, value
from pulsark.admin.pulsar.partitioned import leaves
from pulsark.admin.spark.segments import file_answer
from pulsark.dispatch.broker import Broker
from pulsark.dispatch.loop.turns import in_turns
from pulsark.limits import LEDGERS_PER_TURN_MAX
from pulsark.metadata.paths import managed_ledger_path
from pulsark.runtime import run_in_worker
from pulsark.security.operations import TopicOperation as T
from pulsark.storage.managed_ledger.record import read_ledgers
from pulsark.storage.roots.root_files import RootFiles
from pulsark.storage.table.files.record import DataFile
from pulsark.storage.table.log.time_travel import (
    NO_VERSION,
    NoSuchVersionError,
    Version,
    read_log,
    table_at,
    version_at,
    with_later,
)
from pulsark.wire.topic_name import TopicName

if TYPE_CHECKING:
    from pulsark.storage.managed_ledger.ledger_list import LedgerInfo
    from pulsark.storage.managed_ledger.record import ManagedLedgerRecord

router = Guarded(at=OWNER_OF_BASE, prefix=TOPICS, tags=["pulsark"])


@router.get("/{topic}/table/past", needs=topic(T.PEEK_MESSAGES))
async def get_past(topic: TopicOf, request: Request, broker: BrokerOf) -> Response:
    """The files of a version, or of the version at a time."""
    given = request.query_params
    if ("version" in given) == ("timestamp" in given):
        raise fail(400, "One of version and timestamp is expected")
    created, ledgers = [], []
    for leaf in await leaves(broker, topic):
        record, infos = await _ledgers(broker, leaf, create=leaf != topic)
        created.append(record.created_ms)
        ledgers.append(infos)
    directories = await broker.tables.directories(topic)
    each = chain.from_iterable(ledgers)
    listed = {info.ledger_id async for info in in_turns(each, LEDGERS_PER_TURN_MAX)}
    worker = broker.runtime.new_worker("past-table")
    try:
        look = partial(_look, broker.tables.files, directories, dict(given), listed)
        found = await run_in_worker(worker, look)
    except NoSuchVersionError as error:
        raise fail(412, str(error)) from None
    finally:
        worker.end()
    return value(
        {
            "version": found.version,
            "timeMs": found.time_ms,
            "nowMs": broker.clock.now_ms(),
            "createdMs": min(created),
            "directories": list(directories),
            "partitions": _partitions(topic, found.files),
            "later": _partitions(topic, found.later),
            "laterWhole": found.later_whole,
        }
    )


async def _ledgers(
    broker: Broker, leaf: TopicName, *, create: bool
) -> tuple[ManagedLedgerRecord, Iterable[LedgerInfo]]:
    """A partition's record and ledgers. Of one that another broker has, as they are stored: an open
    ledger is in there before anything of it is sealed."""
    elsewhere = broker.topics_elsewhere()
    if elsewhere is not None and await elsewhere.serves(leaf):
        found = await read_ledgers(managed_ledger_path(leaf), broker.metadata)
        if found is not None:
            return found[0], found[1].infos()
    ledger = (await broker.topics.load(leaf, create=create)).ledger
    return ledger.record, ledger.each_ledger()


def _look(
    disk: RootFiles, directories: Sequence[str], given: Mapping[str, str], listed: Collection[int]
) -> Version:
    """What is asked for; blocks."""
    if not directories:
        if "version" in given:
            raise NoSuchVersionError("it has no table yet; pulsark topics seal makes one")
        return NO_VERSION
    commits = read_log(disk, directories)
    if "version" in given:
        return table_at(commits, number(given["version"]), disk, directories)
    wanted = version_at(commits, number(given["timestamp"]))
    found = NO_VERSION if wanted < 0 else table_at(commits, wanted, disk, directories)
    return with_later(found, commits, listed, disk, directories)


def _partitions(topic: TopicName, found: Iterable[DataFile]) -> list[dict[str, Any]]:
    ledgers: dict[int, dict[int, list[DataFile]]] = defaultdict(lambda: defaultdict(list))
    for file in found:
        ledgers[file.partition][file.ledger_id].append(file)
    return [
        {
            "name": str(topic if partition < 0 else topic.with_partition(partition)),
            "ledgers": [
                file_answer(ledger_id, sorted(files, key=lambda file: file.first_entry_id))
                for ledger_id, files in sorted(mine.items())
            ],
        }
        for partition, mine in sorted(ledgers.items())
    ]
