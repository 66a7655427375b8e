"""The command ``pulsark tables repair``."""

from __future__ import annotations

import secrets
import sys
import textwrap
import time
from typing import Annotated, Any

import typer

from pulsark.admin_client.client import AdminClient
from pulsark.admin_client.paths import topic_path
from pulsark.cli.admin.access import admin_client
from pulsark.cli.terminal.arguments import DEFAULT_ADMIN_URL, AdminUrl, Json, Topic
from pulsark.cli.terminal.errors import CommandError
from pulsark.cli.terminal.output import print_json, print_table
from pulsark.wire.topic_name import TopicName

tables = typer.Typer(help="Make the table of a topic whole again.", no_args_is_help=True)

POLL_SECONDS = 0.2
PROGRESS_SECONDS = 5.0
"""Between two lines that say how far it is."""

FIRST_SHOWN = 20
"""Lost files that are listed; --json has more."""


@tables.command("repair")
def repair_table(
    topic: Topic,
    give_up: Annotated[
        bool,
        typer.Option(
            "--give-up",
            help="Go on without the entries that are lost.",
        ),
    ] = False,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
    as_json: Json = False,
) -> None:
    """Undo what others wrote to a topic's table, and make files again that are gone.

    Ends with code 1 if files are lost.
    """
    name = TopicName.parse(topic)
    client = admin_client(admin_url)
    path = f"{topic_path(name)}/table/work/{secrets.token_hex(8)}"
    work = client.call("PUT", path, {"do": "repair", "giveUp": give_up})
    done = _waited_for(client, path, work)
    if as_json:
        print_json({"topic": str(name.base), **done})
    else:
        _print(str(name.base), done)
    if done["lost"] and give_up:
        raise CommandError(
            f"{_lost(done)} of {name.base} are lost, and could not be given up: "
            f"{done['lost'][0]['reason']}. Mend that and repair again"
        )
    if done["filesLost"] or done["entriesLost"]:
        raise CommandError(
            f"{_lost(done)} of {name.base} are lost. Bring a storage root back that has them, or "
            "the newest metadata store, and repair again; or, if there is none, go on without "
            "them: --give-up"
        )


def _lost(done: dict[str, Any]) -> str:
    files, entries = done["filesLost"], done["entriesLost"]
    of_files = [f"{files:,} files"] if files else []
    others = [f"{entries:,} entries that are in no file"] if entries else []
    return " and ".join(of_files + others)


def _waited_for(client: AdminClient, path: str, work: dict[str, Any]) -> dict[str, Any]:
    said = time.monotonic()  # noqa: TID251 - a command has no loop
    while work["status"] == "RUNNING":
        time.sleep(POLL_SECONDS)  # noqa: TID251
        work = client.get(path)
        now = time.monotonic()  # noqa: TID251
        if now - said >= PROGRESS_SECONDS:
            said, progress = now, work.get("progress") or {}
            print(
                f"{progress.get('step')}: {progress.get('files', 0):,} files, "
                f"{progress.get('copied', 0):,} copied, "
                f"{progress.get('madeAgain', 0):,} made again",
                file=sys.stderr,
            )
    if work["status"] == "ERROR":
        raise CommandError(f"The table is not repaired: {work['error']}")
    done: dict[str, Any] = work["result"]
    return done


def _print(topic: str, done: dict[str, Any]) -> None:
    print(f"Repaired the table of {topic}")
    facts = [
        ("Files", done["files"]),
        ("Taken up from the log", done["takenUp"]),
        ("Copied to roots that lacked them", done["copied"]),
        ("Made again", done["madeAgain"]),
        ("Lost", done["filesLost"]),
        ("Entries lost that are in no file", done["entriesLost"]),
        ("Entries given up", done["entriesGivenUp"]),
    ]
    for label, number in facts:
        print(f"  {label:33} {number:,}")
    lost = done["lost"][:FIRST_SHOWN]
    if lost:
        rows = [
            (
                f["partition"],
                f["ledgerId"],
                f"{f['entries'][0]:,}",
                f"{f['entries'][1]:,}",
                "-" if f["rows"] is None else f["rows"],
            )
            for f in lost
        ]
        columns = [("PARTITION", True), ("LEDGER", True), ("FROM", True), ("TO", True)]
        print_table([*columns, ("MESSAGES", True)], rows, "Lost")
        print(textwrap.fill(lost[0]["reason"], 80, break_on_hyphens=False))
