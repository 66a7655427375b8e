"""Requests to etcd's JSON gateway, and what is in its answers. Pure.

Keys and values are in base64, numbers of 64 bits are texts, and what is 0 or empty is left out.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key as it is at one revision."""

    key: bytes
    value: bytes
    created: int
    """The revision that created it. Revisions count all changes of etcd, and never repeat."""
    changed: int
    """The revision that changed it last."""
    version: int
    """How many changes it has had since it was created, with its creation."""
    lease: int


@dataclass(frozen=True, slots=True)
class TxnAnswer:
    """What a transaction did."""

    succeeded: bool
    """Whether all comparisons held."""
    revision: int
    """The one that it made, or that it read."""
    found: Sequence[Sequence[KeyValue]]
    """For each operation what it read."""


def get(key: bytes, end: bytes = b"", *, limit: int = 0, keys_only: bool = False) -> Json:
    """Read a key, or those from ``key`` up to before ``end``, in order."""
    request: Json = {"key": _text(key)}
    if end:
        request["range_end"] = _text(end)
    if limit:
        request["limit"] = limit
    if keys_only:
        request["keys_only"] = True
    return {"request_range": request}


def put(key: bytes, value: bytes, lease: int = 0) -> Json:
    """Store a value; it vanishes with the lease, if one is given."""
    request: Json = {"key": _text(key), "value": _text(value)}
    if lease:
        request["lease"] = str(lease)
    return {"request_put": request}


def delete(key: bytes) -> Json:
    """Delete a key, if it is there."""
    return {"request_delete_range": {"key": _text(key)}}


def is_at(key: bytes, changed: int) -> Json:
    """Compare: the key was changed last by a revision; 0 if it is absent."""
    number = str(changed)
    return {"key": _text(key), "target": "MOD", "result": "EQUAL", "mod_revision": number}


def is_there(key: bytes) -> Json:
    """Compare: the key exists."""
    return {"key": _text(key), "target": "CREATE", "result": "GREATER", "create_revision": "0"}


def transaction(
    compare: Sequence[Json], then: Sequence[Json], otherwise: Sequence[Json] = ()
) -> Json:
    """The body of ``kv/txn``."""
    return {"compare": list(compare), "success": list(then), "failure": list(otherwise)}


def watch(key: bytes, end: bytes, revision: int) -> Json:
    """The body of ``watch``: all changes of a range of keys from a revision on."""
    return {
        "create_request": {
            "key": _text(key),
            "range_end": _text(end),
            "start_revision": str(revision),
            "fragment": True,
        }
    }


def after(prefix: bytes) -> bytes:
    """The end of the range of all keys that begin with a prefix, whose last byte is not 255."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def txn_answer(document: Mapping[str, Any]) -> TxnAnswer:
    """The answer to ``kv/txn``; ``ValueError``, ``KeyError`` or ``TypeError`` if it is none."""
    found = [
        [key_value(each) for each in response.get("response_range", {}).get("kvs", ())]
        for response in document.get("responses", ())
    ]
    revision = int(document["header"]["revision"])
    return TxnAnswer(bool(document.get("succeeded")), revision, found)


def key_value(document: Mapping[str, Any]) -> KeyValue:
    """A key in an answer or an event."""
    return KeyValue(
        b64decode(document["key"]),
        b64decode(document.get("value", "")),
        int(document.get("create_revision", 0)),
        int(document.get("mod_revision", 0)),
        int(document.get("version", 0)),
        int(document.get("lease", 0)),
    )


def _text(data: bytes) -> str:
    return b64encode(data).decode()
