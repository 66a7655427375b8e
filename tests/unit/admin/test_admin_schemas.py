"""``/admin/v2/schemas``: statuses and JSON as Pulsar's admin clients expect them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.admin_api import AdminApi

SCHEMAS = "/admin/v2/schemas/public/default/t"


@pytest.fixture
def api() -> Iterator[AdminApi]:
    api = AdminApi()
    yield api
    api.close()


def payload(*fields: str, kind: str = "AVRO", **more: Any) -> dict[str, Any]:
    """A record of ints; a field ``a=`` has a default."""
    listed: list[dict[str, Any]] = []
    for text in fields:
        name, has_default, _ = text.partition("=")
        listed.append({"name": name, "type": "int"} | ({"default": 0} if has_default else {}))
    definition = {"type": "record", "name": "R", "fields": listed}
    return {"type": kind, "schema": json.dumps(definition), "properties": {}, **more}


@pytest.mark.feature("F91")
def test_uploading_and_reading(api: AdminApi) -> None:
    assert api.get(f"{SCHEMAS}/schema").status == 404
    assert api.get(f"{SCHEMAS}/schemas").json == {"getSchemaResponses": []}
    first = payload("a", properties={"owner": "me"})
    answer = api.post(f"{SCHEMAS}/schema", first)
    assert (answer.status, answer.json) == (200, {"version": {"version": 0}})
    expected = {
        "version": 0,
        "type": "AVRO",
        "timestamp": api.clock.ms,
        "data": first["schema"],
        "properties": {"owner": "me"},
    }
    assert api.get(f"{SCHEMAS}/schema").json == expected
    assert api.post(f"{SCHEMAS}/schema", payload("a", "b=")).json == {"version": {"version": 1}}
    assert api.post(f"{SCHEMAS}/schema", first).json == {"version": {"version": 0}}
    assert api.get(f"{SCHEMAS}/schema").json["version"] == 1
    assert api.get(f"{SCHEMAS}/schema/0").json == expected
    found = api.get(f"{SCHEMAS}/schemas").json["getSchemaResponses"]
    assert [each["version"] for each in found] == [0, 1]
    assert found[0] == expected
    for number in ("2", "x", "-1", "99999999999999999999"):
        assert api.get(f"{SCHEMAS}/schema/{number}").status == 404
    assert api.get("/admin/v2/persistent/public/default").json == []  # no topic came of it


def test_partitions_have_the_schema_of_their_topic(api: AdminApi) -> None:
    api.post(f"{SCHEMAS}-partition-3/schema", payload("a"))
    assert api.get(f"{SCHEMAS}/schema").json["version"] == 0


def test_an_incompatible_schema_is_a_conflict(api: AdminApi) -> None:
    api.post(f"{SCHEMAS}/schema", payload("a"))
    answer = api.post(f"{SCHEMAS}/schema", payload("a", "b"))
    assert answer.status == 409
    assert "field b" in answer.reason
    assert api.post(f"{SCHEMAS}/schema", {"type": "STRING", "schema": ""}).status == 409


@pytest.mark.parametrize(
    "body",
    [
        {"type": "AVRO", "schema": "{"},
        {"type": "AVRO", "schema": 5},
        {"type": "AVRO", "schema": "", "properties": {}},
        {"type": "JSON", "schema": '{"type": "x"}'},
        {"type": "STRING", "schema": "text"},
        {"type": "AUTO_CONSUME", "schema": ""},
        {"type": "Avro", "schema": '"int"'},
        {"type": None, "schema": '"int"'},
        {"schema": '"int"'},
        {"type": ["AVRO"], "schema": '"int"'},
        {"type": "KEY_VALUE", "schema": "{}"},
        {"type": "PROTOBUF_NATIVE", "schema": "{}"},
    ],
    ids=json.dumps,
)
def test_a_definition_that_is_none_cannot_be_processed(api: AdminApi, body: Any) -> None:
    for path in ("schema", "version", "compatibility"):
        answer = api.post(f"{SCHEMAS}/{path}", body)
        assert answer.status == 422, path
        assert answer.reason
    assert api.get(f"{SCHEMAS}/schema").status == 404


def test_the_version_of_a_schema(api: AdminApi) -> None:
    api.post(f"{SCHEMAS}/schema", payload("a"))
    assert api.post(f"{SCHEMAS}/version", payload("a")).json == {"version": 0}
    assert api.post(f"{SCHEMAS}/version", payload("b")).json == {"version": -1}


def test_compatibility_is_answered_without_a_change(api: AdminApi) -> None:
    path = f"{SCHEMAS}/compatibility"
    answer = api.post(path, payload("a"))
    assert answer.status == 202
    assert answer.json == {"compatibility": True, "schemaCompatibilityStrategy": "FULL"}
    api.post(f"{SCHEMAS}/schema", payload("a"))
    assert api.post(path, payload("a", "b=")).json["compatibility"] is True
    answer = api.post(path, payload("b"))
    assert (answer.status, answer.json["compatibility"]) == (202, False)
    assert len(api.get(f"{SCHEMAS}/schemas").json["getSchemaResponses"]) == 1


def test_deleting(api: AdminApi) -> None:
    assert api.delete(f"{SCHEMAS}/schema").json == {"version": -1}
    api.post(f"{SCHEMAS}/schema", payload("a"))
    answer = api.delete(f"{SCHEMAS}/schema")
    assert (answer.status, answer.json) == (200, {"version": 1})
    assert api.get(f"{SCHEMAS}/schema").status == 404
    assert api.get(f"{SCHEMAS}/schema/1").status == 404
    assert api.get(f"{SCHEMAS}/schemas").json == {"getSchemaResponses": []}
    string = {"type": "STRING", "schema": ""}
    assert api.post(f"{SCHEMAS}/schema", string).json == {"version": {"version": 2}}
    assert api.delete(f"{SCHEMAS}/schema?force=true").json == {"version": -1}
    assert api.post(f"{SCHEMAS}/schema", string).json == {"version": {"version": 0}}


def test_pairs_are_written_as_json(api: AdminApi) -> None:
    definition = json.dumps({"key": "", "value": {"type": "array", "items": "int"}})
    properties = {"key.schema.type": "STRING", "value.schema.type": "AVRO"}
    body = {"type": "KEY_VALUE", "schema": definition, "properties": properties}
    assert api.post(f"{SCHEMAS}/schema", body).json == {"version": {"version": 0}}
    found = api.get(f"{SCHEMAS}/schema").json
    assert (found["type"], found["properties"]) == ("KEY_VALUE", properties)
    assert json.loads(found["data"]) == json.loads(definition)
    assert api.post(f"{SCHEMAS}/version", body).json == {"version": 0}


def test_a_namespace_must_be_there(api: AdminApi) -> None:
    path = "/admin/v2/schemas/public/none/t"
    for answer in (
        api.get(f"{path}/schema"),
        api.get(f"{path}/schemas"),
        api.post(f"{path}/schema", payload("a")),
        api.delete(f"{path}/schema"),
    ):
        assert answer.status == 404
        assert answer.reason


def test_an_operator_updates_what_clients_may_not(request: pytest.FixtureRequest) -> None:
    api = AdminApi(isAllowAutoUpdateSchemaEnabled=False, schemaCompatibilityStrategy="BACKWARD")
    request.addfinalizer(api.close)
    assert api.post(f"{SCHEMAS}/schema", payload("a")).status == 200
    answer = api.post(f"{SCHEMAS}/compatibility", payload("a"))
    assert answer.json["schemaCompatibilityStrategy"] == "BACKWARD"


def test_a_schema_can_be_brought_as_by_a_producer(request: pytest.FixtureRequest) -> None:
    api = AdminApi(isAllowAutoUpdateSchemaEnabled=False)
    request.addfinalizer(api.close)
    assert api.post(f"{SCHEMAS}/producerSchema", payload("a")).status == 409
    assert api.get(f"{SCHEMAS}/schema").status == 404
    for version, body in enumerate((payload("a"), payload("a", "b="))):
        api.post(f"{SCHEMAS}/schema", body)
        answer = api.post(f"{SCHEMAS}/producerSchema", body)
        assert (answer.status, answer.json) == (200, {"schemaVersion": f"{version:016x}"})
    assert api.post(f"{SCHEMAS}/producerSchema", {"type": "AVRO", "schema": "{"}).status == 422


def test_properties_are_texts(api: AdminApi) -> None:
    body = payload("a", properties={"a": [1]})
    assert api.post(f"{SCHEMAS}/schema", body).status == 400
    assert api.post(f"{SCHEMAS}/schema", payload("a", properties=None)).status == 200
