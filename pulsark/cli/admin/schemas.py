"""``pulsark schemas``: get, upload, delete, compatibility."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pulsark.admin_client.paths import schemas_path
from pulsark.cli.admin.access import admin_client
from pulsark.cli.terminal.errors import CommandError
from pulsark.cli.terminal.output import print_json
from pulsark.wire.topic_name import TopicName


def _path(topic: str) -> str:
    return schemas_path(TopicName.parse(topic))


def read_payload(file: str, schema_type: str, properties: Mapping[str, str]) -> dict[str, Any]:
    """What the admin API is sent for a definition in a file; ``-`` is stdin.

    The file may also be what ``pulsar-admin`` takes: JSON with ``type``, ``schema`` and
    ``properties``.
    """
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{file}: {error}") from error
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if isinstance(found, dict) and isinstance(found.get("schema"), str) and "type" in found:
        return {**found, "properties": {**(found.get("properties") or {}), **properties}}
    definition = text.strip()
    return {"type": schema_type.upper(), "schema": definition, "properties": dict(properties)}


def get_schema(admin_url: str, topic: str, version: int | None, *, as_json: bool) -> None:
    """Print a version of a topic's schema, or the newest."""
    path = f"{_path(topic)}/schema" + ("" if version is None else f"/{version}")
    found = admin_client(admin_url).get(path)
    if as_json:
        print_json(found)
        return
    print(f"version {found['version']}, {found['type']}")
    for key, value in sorted(found["properties"].items()):
        print(f"  {key}={value}")
    if found["data"]:
        try:
            print_json(json.loads(found["data"]))
        except ValueError:
            print(found["data"])


def upload_schema(admin_url: str, topic: str, payload: Mapping[str, Any], *, as_json: bool) -> None:
    """Register a schema, unless the topic's strategy refuses it."""
    answer = admin_client(admin_url).call("POST", f"{_path(topic)}/schema", payload)
    if as_json:
        print_json(answer)
    else:
        print(f"{TopicName.parse(topic).base} has it as version {answer['version']['version']}")


def delete_schema(admin_url: str, topic: str, *, force: bool, as_json: bool) -> None:
    """Delete a topic's schema; with ``force`` its versions too."""
    path = f"{_path(topic)}/schema" + ("?force=true" if force else "")
    answer = admin_client(admin_url).call("DELETE", path)
    if as_json:
        print_json(answer)
    else:
        print(f"{TopicName.parse(topic).base} has no schema")


def check_schema(admin_url: str, topic: str, payload: Mapping[str, Any], *, as_json: bool) -> bool:
    """Print whether a schema could be registered, and return it."""
    answer = admin_client(admin_url).call("POST", f"{_path(topic)}/compatibility", payload)
    compatible: bool = answer["compatibility"]
    if as_json:
        print_json(answer)
    else:
        strategy = answer["schemaCompatibilityStrategy"]
        print(f"{'compatible' if compatible else 'incompatible'} ({strategy})")
    return compatible
