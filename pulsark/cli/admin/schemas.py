"""The commands of ``pulsark schemas``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from pulsark.admin_client.paths import schemas_path
from pulsark.cli.admin.access import admin_client
from pulsark.cli.terminal.arguments import DEFAULT_ADMIN_URL, AdminUrl, Json, Topic, named
from pulsark.cli.terminal.errors import CommandError
from pulsark.cli.terminal.output import print_json
from pulsark.log_format import escaped
from pulsark.wire.topic_name import TopicName

schemas = typer.Typer(help="Show, upload, check and delete schemas.", no_args_is_help=True)

DefinitionFile = Annotated[
    str, typer.Argument(metavar="FILE", help="The definition; - is stdin.", show_default=False)
]
SchemaKind = Annotated[
    str, typer.Option("--type", "-t", help="AVRO, JSON, PROTOBUF, STRING, ... as in Pulsar.")
]
SchemaProperty = Annotated[
    list[str] | None,
    typer.Option("--property", "-p", metavar="NAME=VALUE", help="Property of the schema."),
]


def _path(topic: str) -> str:
    return schemas_path(TopicName.parse(topic))


def _payload(file: str, schema_type: str, header: list[str] | None) -> dict[str, Any]:
    """What the admin API is sent for a definition in a file; ``-`` is stdin.

    The file may also be what ``pulsar-admin`` takes: JSON with ``type``, ``schema`` and
    ``properties``.
    """
    properties = named(header)
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
    return {"type": schema_type.upper(), "schema": definition, "properties": properties}


@schemas.command("get")
def get_schema(
    topic: Topic,
    version: Annotated[
        int | None, typer.Option("--version", "-v", min=0, help="A version; else the newest.")
    ] = None,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
    as_json: Json = False,
) -> None:
    """Show the schema of a topic."""
    path = f"{_path(topic)}/schema" + ("" if version is None else f"/{version}")
    found = admin_client(admin_url).get(path)
    if as_json:
        print_json(found)
        return
    print(f"version {found['version']}, {found['type']}")
    for key, value in sorted(found["properties"].items()):
        print(f"  {escaped(key)}={escaped(value)}")
    if found["data"]:
        try:
            print_json(json.loads(found["data"]))
        except ValueError:
            print(found["data"])


@schemas.command("upload")
def upload_schema(
    topic: Topic,
    file: DefinitionFile,
    schema_type: SchemaKind = "AVRO",
    header: SchemaProperty = None,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
    as_json: Json = False,
) -> None:
    """Add a schema to a topic, unless it is incompatible."""
    payload = _payload(file, schema_type, header)
    answer = admin_client(admin_url).call("POST", f"{_path(topic)}/schema", payload)
    if as_json:
        print_json(answer)
    else:
        print(f"{TopicName.parse(topic).base} has it as version {answer['version']['version']}")


@schemas.command("compatibility")
def check_schema(
    topic: Topic,
    file: DefinitionFile,
    schema_type: SchemaKind = "AVRO",
    header: SchemaProperty = None,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
    as_json: Json = False,
) -> None:
    """Check whether a schema could be added; ends with 1 if not."""
    payload = _payload(file, schema_type, header)
    answer = admin_client(admin_url).call("POST", f"{_path(topic)}/compatibility", payload)
    compatible = answer["compatibility"]
    if as_json:
        print_json(answer)
    else:
        strategy = answer["schemaCompatibilityStrategy"]
        print(f"{'compatible' if compatible else 'incompatible'} ({strategy})")
    if not compatible:
        raise typer.Exit(1)


@schemas.command("delete")
def delete_schema(
    topic: Topic,
    force: Annotated[
        bool, typer.Option("--force", help="Forget its versions too; the next one is 0.")
    ] = False,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
    as_json: Json = False,
) -> None:
    """Delete the schema of a topic."""
    path = f"{_path(topic)}/schema" + ("?force=true" if force else "")
    answer = admin_client(admin_url).call("DELETE", path)
    if as_json:
        print_json(answer)
    else:
        print(f"{TopicName.parse(topic).base} has no schema")
