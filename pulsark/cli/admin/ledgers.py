"""The command ``pulsark ledgers check``: are sealed ledgers on all storage roots that they need?"""

from __future__ import annotations

import textwrap
from collections import Counter
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from pulsark.cli.admin.access import admin_client
from pulsark.cli.terminal.arguments import DEFAULT_ADMIN_URL, AdminUrl, Json
from pulsark.cli.terminal.errors import CommandError
from pulsark.cli.terminal.output import print_json, print_table
from pulsark.wire.topic_name import TopicName

ledgers = typer.Typer(help="Check the copies of sealed ledgers.", no_args_is_help=True)

_WORST = ("missing", "damaged", "ok")


@ledgers.callback()
def ledgers_group() -> None:
    """Check the copies of sealed ledgers."""


@ledgers.command("check")
def check_ledgers(
    topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Only the ledgers of this topic.")
    ] = None,
    all_ledgers: Annotated[
        bool, typer.Option("--all", help="Show the ledgers that lack nothing, too.")
    ] = False,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
    as_json: Json = False,
) -> None:
    """Show which sealed ledgers lack copies; exit code 1 if any does, or a root is refused."""
    client = admin_client(admin_url)
    roots: dict[str, str] = {}
    lost: set[str] = set()
    rows: list[dict[str, Any]] = []
    logs: list[dict[str, str]] = []
    after = ""
    while True:
        query = [("after", after)] + ([("topic", str(TopicName.parse(topic)))] if topic else [])
        page = client.get(f"/sealing/copies?{urlencode(query)}")
        roots = page["roots"]
        for table in page["tables"]:
            lost |= set(map(_root_of, table["directories"])) - roots.keys()
            rows += [_row(table, ledger) for ledger in table["ledgers"]]
            logs += [
                {"topic": table["topic"], "directory": directory, "state": state}
                for directory, state in sorted(table["logs"].items())
                if state != "ok" and not roots.get(_root_of(directory), "lost")
            ]
        after = page["next"]
        if not after:
            break
    lacking = [row for row in rows if row["state"] != "ok"]
    refused = {root: problem for root, problem in roots.items() if problem}
    if as_json:
        print_json(
            {
                "ledgers": len(rows),
                "lacking": len(lacking),
                "refusedRoots": refused,
                "lostRoots": sorted(lost),
                "logs": logs,
                "found": rows if all_ledgers else lacking,
            }
        )
    else:
        _print(rows if all_ledgers else lacking)
        for problem in (*refused.values(), *map(_is_lost, sorted(lost)), *map(_of_log, logs)):
            print(textwrap.fill(problem, 80, break_on_hyphens=False))
        print(
            f"{len(rows)} sealed ledgers on {len(roots)} storage roots, {len(lacking)} lack copies"
        )
    problems = [
        f"{count} {what}"
        for count, what in (
            (len(lacking), "ledgers lack copies"),
            (len(refused), "storage roots are refused"),
            (len(lost), "storage roots are gone for good"),
            (len(logs), "logs of tables are not whole"),
        )
        if count
    ]
    if problems:
        raise CommandError(f"{', '.join(problems)}: run the job replicate_ledgers")


def _root_of(directory: str) -> str:
    # Not before it is needed: it brings the storage of a broker.
    from pulsark.storage.table.root_identity import storage_root_of

    return storage_root_of(directory)


def _is_lost(root: str) -> str:
    return (
        f"storage root {root} is none of the broker's any more: the job replicate_ledgers gives "
        "its tables another one"
    )


def _of_log(log: dict[str, str]) -> str:
    root = _root_of(log["directory"])
    return f"the log of the table of {log['topic']} is {log['state']} on storage root {root}"


def _row(table: dict[str, Any], ledger: dict[str, Any]) -> dict[str, Any]:
    """How a ledger is: copies are whole if all its files are."""
    states = {
        directory: min(ledger["copies"][directory], key=_WORST.index)
        for directory in table["wanted"]
    }
    count = Counter(states.values())
    return {
        "topic": table["topic"],
        "partition": ledger["partition"],
        "ledgerId": ledger["ledgerId"],
        "entries": ledger["entries"],
        "copies": count["ok"],
        "wanted": len(states),
        "state": min(states.values(), key=_WORST.index, default="ok"),
        "where": states,
    }


def _print(rows: list[dict[str, Any]]) -> None:
    if rows:
        columns = [
            ("TOPIC", False),
            ("LEDGER", True),
            ("ENTRIES", True),
            ("COPIES", True),
            ("", False),
        ]
        print_table(
            columns,
            [
                (
                    TopicName.parse(row["topic"]).with_partition(row["partition"])
                    if row["partition"] >= 0
                    else row["topic"],
                    row["ledgerId"],
                    row["entries"],
                    f"{row['copies']} of {row['wanted']}",
                    "" if row["state"] == "ok" else row["state"],
                )
                for row in rows
            ],
        )
