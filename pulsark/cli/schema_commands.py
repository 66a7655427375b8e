"""The commands of ``pulsark schemas``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from pulsark.cli.arguments import DEFAULT_ADMIN_URL, AdminUrl, Json, Topic, named

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


@schemas.command("get")
def schemas_get(
    topic: Topic,
    version: Annotated[
        int | None, typer.Option("--version", "-v", min=0, help="A version; else the newest.")
    ] = None,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
    json: Json = False,
) -> None:
    """Show the schema of a topic."""
    from pulsark.cli.admin.schemas import get_schema

    get_schema(admin_url, topic, version, as_json=json)


def _schema_command(name: str, does: str, run: Callable[[str, str, Any, bool], None]) -> None:
    """Add a command about a definition: what runs gets URL, topic, payload and ``--json``."""

    @schemas.command(name, help=does)
    def command(
        topic: Topic,
        file: DefinitionFile,
        schema_type: SchemaKind = "AVRO",
        header: SchemaProperty = None,
        admin_url: AdminUrl = DEFAULT_ADMIN_URL,
        json: Json = False,
    ) -> None:
        from pulsark.cli.admin.schemas import read_payload

        run(admin_url, topic, read_payload(file, schema_type, named(header)), json)


def _upload_schema(admin_url: str, topic: str, payload: Any, as_json: bool) -> None:
    from pulsark.cli.admin.schemas import upload_schema

    upload_schema(admin_url, topic, payload, as_json=as_json)


def _check_schema(admin_url: str, topic: str, payload: Any, as_json: bool) -> None:
    from pulsark.cli.admin.schemas import check_schema

    if not check_schema(admin_url, topic, payload, as_json=as_json):
        raise typer.Exit(1)


_schema_command("upload", "Add a schema to a topic, unless it is incompatible.", _upload_schema)
_schema_command(
    "compatibility", "Check whether a schema could be added; ends with 1 if not.", _check_schema
)


@schemas.command("delete")
def schemas_delete(
    topic: Topic,
    force: Annotated[
        bool, typer.Option("--force", help="Forget its versions too; the next one is 0.")
    ] = False,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
    json: Json = False,
) -> None:
    """Delete the schema of a topic."""
    from pulsark.cli.admin.schemas import delete_schema

    delete_schema(admin_url, topic, force=force, as_json=json)
