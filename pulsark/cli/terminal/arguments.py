"""Arguments and options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
AdminUrl = Annotated[
    str,
    typer.Option(envvar="PULSARK_ADMIN_URL", help="The broker's HTTP address.", metavar="URL"),
]
ServiceUrl = Annotated[
    str,
    typer.Option(envvar="PULSARK_SERVICE_URL", help="The broker's address.", metavar="URL"),
]
DEFAULT_ADMIN_URL = "http://localhost:8080"
DEFAULT_SERVICE_URL = "pulsar://localhost:6650"
Topic = Annotated[str, typer.Argument(help="Name of a topic, short or full.", show_default=False)]


def named(items: list[str] | None) -> dict[str, str]:
    """The properties of an option that may be given often."""
    properties = {}
    for item in items or []:
        name, equals, value = item.partition("=")
        if not equals:
            raise typer.BadParameter(f"{item}: write NAME=VALUE", param_hint="--property")
        properties[name] = value
    return properties
