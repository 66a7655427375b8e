"""``pulsark bookies``: which bookies there are, and in which racks they stand."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from pulsark.admin_client.paths import segment
from pulsark.cli.admin.access import admin_client
from pulsark.cli.terminal.arguments import DEFAULT_ADMIN_URL, AdminUrl, Json
from pulsark.cli.terminal.output import print_json, print_table

bookies = typer.Typer(help="List the bookies, and set their racks.", no_args_is_help=True)
racks = typer.Typer(
    help="List, set and delete racks: copies of a ledger go to different ones.",
    no_args_is_help=True,
)
bookies.add_typer(racks, name="racks")

Bookie = Annotated[
    str, typer.Argument(metavar="BOOKIE", help="As list prints it.", show_default=False)
]


@bookies.command("list")
def list_bookies(admin_url: AdminUrl = DEFAULT_ADMIN_URL, as_json: Json = False) -> None:
    """List the bookies that a broker knows, with their racks; - is none."""
    client = admin_client(admin_url)
    found = client.get("/bookies/all")["bookies"]
    if as_json:
        print_json(found)
        return
    placed = {bookie: info for _, bookie, info in _by_bookie(client.get("/bookies/racks-info"))}
    rows = [
        (each["bookieId"], each["state"], placed.get(each["bookieId"], {}).get("rack") or "-")
        for each in found
    ]
    print_table((("bookie", False), ("is", False), ("rack", False)), rows)


@racks.command("list")
def list_racks(admin_url: AdminUrl = DEFAULT_ADMIN_URL, as_json: Json = False) -> None:
    """List the bookies whose racks were set, be they there or not."""
    found = admin_client(admin_url).get("/bookies/racks-info")
    if as_json:
        print_json(found)
        return
    rows = [
        (bookie, str(info.get("rack")), group, info.get("hostname") or "-")
        for group, bookie, info in _by_bookie(found)
    ]
    if rows:
        columns = ("bookie", "rack", "group", "host")
        print_table(tuple((each, False) for each in columns), rows)
    else:
        print("No racks")


@racks.command("set")
def set_rack(
    bookie: Bookie,
    rack: Annotated[
        str, typer.Option("--rack", "-r", help="Its rack, like /rack-1.", show_default=False)
    ],
    group: Annotated[str, typer.Option("--group", "-g", help="Its group.")] = "default",
    hostname: Annotated[
        str, typer.Option("--hostname", "-hn", metavar="HOST", help="Its host, for people.")
    ] = "",
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Set the rack of a bookie; ledgers that are made later follow it."""
    info = {"rack": rack, "hostname": hostname or None}
    path = f"/bookies/racks-info/{segment(bookie)}?group={segment(group)}"
    client = admin_client(admin_url)
    client.call("POST", path, info)
    print(f"Set the rack of {bookie}")
    known = [each["bookieId"] for each in client.get("/bookies/all")["bookies"]]
    if bookie not in known:
        print(
            f"pulsark: there is no bookie {bookie} now; there are: {', '.join(known) or 'none'}",
            file=sys.stderr,
        )


@racks.command("delete")
def delete_rack(bookie: Bookie, admin_url: AdminUrl = DEFAULT_ADMIN_URL) -> None:
    """Forget the rack of a bookie."""
    admin_client(admin_url).call("DELETE", f"/bookies/racks-info/{segment(bookie)}")
    print(f"Deleted the rack of {bookie}")


def _by_bookie(groups: dict[str, dict[str, Any]]) -> list[tuple[str, str, dict[str, Any]]]:
    return sorted(
        (
            (group, bookie, info)
            for group, known in groups.items()
            for bookie, info in known.items()
        ),
        key=lambda each: each[:2],
    )
