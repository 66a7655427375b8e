"""``pulsark resource-groups``: limits that namespaces share."""

from __future__ import annotations

from typing import Annotated

import typer

from pulsark.admin_client.paths import segment
from pulsark.cli.admin.access import admin_client
from pulsark.cli.terminal.arguments import DEFAULT_ADMIN_URL, AdminUrl, Json
from pulsark.cli.terminal.output import print_json

resource_groups = typer.Typer(
    help="List, show, set and delete resource groups.", no_args_is_help=True
)

Group = Annotated[str, typer.Argument(help="Name of the group.", show_default=False)]


@resource_groups.command("list")
def list_groups(admin_url: AdminUrl = DEFAULT_ADMIN_URL, as_json: Json = False) -> None:
    """List all resource groups."""
    found = admin_client(admin_url).get("/resourcegroups")
    if as_json:
        print_json(found)
    else:
        print("\n".join(found) or "No resource groups")


@resource_groups.command("get")
def get_group(group: Group, admin_url: AdminUrl = DEFAULT_ADMIN_URL) -> None:
    """Print the limits of a group as JSON; -1 is none."""
    print_json(admin_client(admin_url).get(_path(group)))


@resource_groups.command("set")
def set_group(
    group: Group,
    messages: Annotated[
        int | None, typer.Option("--publish-messages", help="Messages a second; -1: no limit.")
    ] = None,
    size: Annotated[
        int | None, typer.Option("--publish-bytes", help="Bytes a second; -1: no limit.")
    ] = None,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Make a group, or change limits of one."""
    limits = {"publishRateInMsgs": messages, "publishRateInBytes": size}
    admin_client(admin_url).call("PUT", _path(group), limits)
    print(f"Set {group}")


@resource_groups.command("delete")
def delete_group(group: Group, admin_url: AdminUrl = DEFAULT_ADMIN_URL) -> None:
    """Delete a group that no namespace is in."""
    admin_client(admin_url).call("DELETE", _path(group))
    print(f"Deleted {group}")


def _path(group: str) -> str:
    return f"/resourcegroups/{segment(group)}"
