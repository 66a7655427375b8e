"""What must be true of a broker when all hostile clients have gone.

Each function returns sentences, one for each thing that is not as it must be.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any
from zlib import crc32

import pyarrow.flight as fl

from pulsark.admin_client.client import AdminClient, AdminError
from pulsark.admin_client.paths import segment
from pulsark.limits import READER_GRACE_SECONDS
from tests.fuzz.script import NAMESPACES, ODD_TOPICS, TOPICS, VOLATILE_TOPICS, Position
from tests.fuzz.values import TEXTS
from tests.support.client_view import client_view

LEFT_SECONDS = READER_GRACE_SECONDS + 15
"""By then a connection that is gone has left nothing behind, not even a reader that was told to
connect anew."""

SHOWN = 5
_ERROR = re.compile(r"\S+ \S+ ERROR ")
Entries = dict[Position, bytes]


def admin_path(topic: str) -> str:
    """Where the admin API has a topic."""
    domain, _, rest = topic.partition("://")
    tenant, namespace, name = rest.split("/", 2)
    return f"/{domain}/{tenant}/{namespace}/{segment(name)}"


def left_behind(admin: AdminClient) -> list[str]:
    """Producers, consumers and readers of connections that are gone, and topics nobody named."""
    deadline = time.monotonic() + LEFT_SECONDS
    while (found := list(_left(admin))) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found + list(_unknown_topics(admin))


def _left(admin: AdminClient) -> Iterable[str]:
    for topic in (*TOPICS, *VOLATILE_TOPICS):
        stats = _stats(admin, topic)
        if stats is None:
            continue
        if stats["publishers"]:
            yield f"{topic} still has {len(stats['publishers'])} producers"
        for name, subscription in stats["subscriptions"].items():
            if subscription["consumers"]:
                yield f"{topic} {name} still has {len(subscription['consumers'])} consumers"
            elif name.startswith("reader-") and not subscription.get("isDurable", True):
                yield f"{topic} still has the reader {name}"


def _unknown_topics(admin: AdminClient) -> Iterable[str]:
    for namespace in NAMESPACES:
        for domain in ("persistent", "non-persistent"):
            for topic in admin.get(f"/{domain}/{namespace}"):
                if not may_exist(topic):
                    yield f"{topic:.200} exists, which nobody may have made"


def may_exist(topic: str) -> bool:
    """Whether a command could make this topic by naming it."""
    name = topic.rpartition("/")[2]
    known = {each.rpartition("/")[2] for each in TOPICS + VOLATILE_TOPICS} | {*TEXTS, *ODD_TOPICS}
    return name in known or any(map(partial(_is_mutation, name), known))


def _is_mutation(name: str, of: str) -> bool:
    """Whether bytes that were changed in a frame may have made one name of the other."""
    partition = re.sub(r"-partition-\d+$", "-partition-0", of)
    return any(
        len(name) == len(each) and sum(a != b for a, b in zip(name, each, strict=True)) <= 2
        for each in (of, partition, f"{of}-partition-0")
    )


def _stats(admin: AdminClient, topic: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = admin.get(f"{admin_path(topic)}/stats")
        return found
    except AdminError as error:
        if "404" in str(error):
            return None
        raise


def log_lines(log: Path, secrets: Iterable[str] = ()) -> list[str]:
    """Stack traces, errors and secrets in the log."""
    lines = log.read_text(errors="replace").splitlines()
    bad = [
        line
        for line in lines
        if line.startswith("Traceback") or _ERROR.match(line) or any(s in line for s in secrets)
    ]
    shown = [f"the log says: {line[:300]}" for line in dict.fromkeys(bad)]
    return shown[:SHOWN] + ([f"and {len(shown) - SHOWN} more lines"] if len(shown) > SHOWN else [])


def all_topics(admin: AdminClient) -> list[str]:
    """Everything that stores messages, and was not made to be deleted."""
    return [topic for namespace in NAMESPACES for topic in admin.get(f"/persistent/{namespace}")]


def read_all(
    flight_url: str, topics: Iterable[str], headers: Mapping[str, str] = MappingProxyType({})
) -> Entries:
    """Every entry of the topics, by message id."""
    options = fl.FlightCallOptions(headers=[(k.encode(), v.encode()) for k, v in headers.items()])
    entries: Entries = {}
    with fl.connect(flight_url) as client:
        for topic in topics:
            try:
                info = client.get_flight_info(fl.FlightDescriptor.for_path(topic), options)
            except KeyError:
                continue
            for chunk in client.do_get(info.endpoints[0].ticket, options):
                columns = [chunk.data.column(i).to_pylist() for i in range(3)]
                for ledger_id, entry_id, data in zip(*columns, strict=True):
                    entries[ledger_id, entry_id] = data
    return entries


def sum_of(entry: bytes) -> int:
    """A checksum of what clients see: a table gives an entry back that is equal to them."""
    return crc32(repr(client_view(entry)).encode())


def lost(confirmed: Mapping[Position, set[int]], entries: Entries) -> list[str]:
    """Entries that were confirmed, and are not there or are other ones. ``confirmed`` has each
    one's ``sum_of``."""
    missing = [position for position in confirmed if position not in entries]
    other = [
        position
        for position, sums in confirmed.items()
        if position in entries and sum_of(entries[position]) not in sums
    ]
    found = []
    if missing:
        found.append(f"{len(missing)} confirmed entries are gone, such as {missing[:SHOWN]}")
    if other:
        found.append(f"{len(other)} confirmed entries are other ones, such as {other[:SHOWN]}")
    return found


def not_sealed(admin: AdminClient, topics: Iterable[str]) -> list[str]:
    """Topics that cannot be sealed."""
    found = []
    for topic in topics:
        if _stats(admin, topic) is None:
            continue
        try:
            admin.call("POST", f"{admin_path(topic)}/seal")
        except AdminError as error:
            found.append(f"{topic} cannot be sealed: {error}")
    return found


def changed(before: Entries, after: Entries) -> list[str]:
    """Entries that a client can tell from what they were before they were sealed."""
    gone = [position for position in before if position not in after]
    other = [
        position
        for position, data in before.items()
        if position in after
        and after[position] != data
        and client_view(after[position]) != client_view(data)
    ]
    found = []
    if gone:
        found.append(f"{len(gone)} entries are gone after sealing, such as {gone[:SHOWN]}")
    if other:
        found.append(f"{len(other)} entries changed by sealing, such as {other[:SHOWN]}")
    return found


def resident_bytes(pid: int) -> int:
    """Memory of a process that is not shared with files."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"process {pid} has no RssAnon")
