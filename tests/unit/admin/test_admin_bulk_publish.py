"""The HTTP side of a bulk publish: what it takes, and what it refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pulsark.limits import JSON_VALUES_MAX
from pulsark.storage.table.files.table_limits import FILES_PER_PUBLISH_MAX
from tests.support.admin_api import NAMESPACE, AdminApi

PATH = f"{NAMESPACE}/t/bulkPublish"
FILE = {
    "path": "1-a-0.parquet", "partition": -1, "ledgerId": -1, "entries": [0, 0], "rows": 1,
    "size": 1, "crc32c": 0, "stats": {},
}  # fmt: skip


def body(**changed: Any) -> dict[str, Any]:
    ledgers = [{"partition": -1, "length": 1, "files": [{**FILE, **changed}]}]
    return {"topicId": "x", "partitions": 0, "ledgers": ledgers}


@pytest.mark.parametrize(
    ("sent", "status", "reason"),
    [
        ({}, 400, "ledgers is a list"),
        ({"ledgers": [], "partitions": 0}, 400, "topicId is a text"),
        ({"ledgers": [], "topicId": "x"}, 400, "partitions is an integer"),
        ({"ledgers": [{}], "topicId": "x", "partitions": 0}, 400, "cannot be understood"),
        (body(path="../../etc/passwd"), 400, "not the name of a file below a directory"),
        (body(path="1-a-0.parquet/x-1.parquet"), 400, "not the name of a staged file"),
        (body(entries=[1, 1]), 400, "do not follow"),
        (body(entries=[0, 10**30]), 400, ""),
        (body(partition=3), 400, "is of partition 3"),
    ],
)
def test_a_request_that_is_not_understood_names_what_is_wrong(
    api: AdminApi, sent: dict[str, Any], status: int, reason: str
) -> None:
    api.put(f"{NAMESPACE}/t")
    answer = api.put(f"{PATH}/q/0", sent)
    assert answer.status == status or not reason
    assert answer.status < 500
    assert reason in answer.reason


def test_too_many_files_are_refused_before_anything_is_looked_at(api: AdminApi) -> None:
    file = {**FILE, "stats": {}, "path": "1-a-0.parquet"}
    ledger = {"partition": -1, "length": 1, "files": [file]}
    sent = {"topicId": "x", "partitions": 0, "ledgers": [ledger] * (FILES_PER_PUBLISH_MAX + 1)}
    assert api.put(f"{PATH}/q/0", sent).status == 413


def test_as_many_files_as_a_publish_may_have_are_understood(api: AdminApi) -> None:
    """Their values together would be more than a body may have, so each is a text."""
    api.put(f"{NAMESPACE}/t")
    file = {**FILE, "stats": {"numRecords": 1}}
    texts = [json.dumps(file, separators=(",", ":"))] * FILES_PER_PUBLISH_MAX
    ledgers = [{"partition": -1, "length": 1, "files": [text]} for text in texts]
    answer = api.put(f"{PATH}/q/0", {"topicId": "x", "partitions": 0, "ledgers": ledgers})
    assert answer.status == 405
    assert "created again since the files were written" in answer.reason  # that is looked at next
    assert FILES_PER_PUBLISH_MAX * (len(file) + 3) > JSON_VALUES_MAX


@pytest.mark.parametrize("text", ["", "7", "[" * 10_000, '{"path": 1e999}', " " * 40_000, "{}"])
def test_a_text_that_is_no_file_is_refused(api: AdminApi, text: str) -> None:
    api.put(f"{NAMESPACE}/t")
    ledgers = [{"partition": -1, "length": 1, "files": [text]}]
    answer = api.put(f"{PATH}/q/0", {"topicId": "x", "partitions": 0, "ledgers": ledgers})
    assert answer.status == 400
    assert "cannot be understood" in answer.reason


def test_ids_and_numbers_are_checked(api: AdminApi) -> None:
    assert api.get(f"{PATH}/{'q' * 129}/0").status == 412
    assert api.get(f"{PATH}/q%20/0").status == 412
    assert api.get(f"{PATH}/q/x").status == 404


def test_a_topic_that_is_missing_is_named(api: AdminApi) -> None:
    answer = api.get(PATH)
    assert answer.status == 404
    assert "persistent://public/default/t does not exist" in answer.reason


def test_a_writer_learns_how_large_entries_may_be(api: AdminApi) -> None:
    api.put(f"{NAMESPACE}/t")
    largest = api.broker.settings.maxMessageSize
    assert api.get(PATH).json["entryBytesMax"] == largest
    assert api.post(f"{NAMESPACE}/t/maxMessageSize", 1000).status < 300
    assert api.get(PATH).json["entryBytesMax"] == 1000


def test_nothing_is_staged_in_the_clear_where_encryption_is_required(api: AdminApi) -> None:
    api.put(f"{NAMESPACE}/t")
    assert api.get(PATH).status == 200
    name = NAMESPACE.removeprefix("/admin/v2/persistent/")
    assert api.post(f"/admin/v2/namespaces/{name}/encryptionRequired", True).status == 204
    refused = api.get(PATH)
    assert refused.status == 405
    assert "Encryption is required" in refused.reason
