"""``pulsark ledgers check``: whether sealed ledgers are on all storage roots they should be on."""

from __future__ import annotations

import textwrap
from collections import Counter
from typing import Any
from urllib.parse import urlencode

from pulsark.cli.admin_client import AdminClient
from pulsark.cli.errors import CommandError
from pulsark.cli.output import print_json, print_table
from pulsark.wire.topic_name import TopicName

_WORST = ("missing", "damaged", "ok")


def check_ledgers(admin_url: str, topic: str | None, *, all_ledgers: bool, as_json: bool) -> None:
    """Print the ledgers that lack copies, or all; ``CommandError`` if there are such ledgers."""
    client = AdminClient(admin_url)
    roots: dict[str, str] = {}
    rows: list[dict[str, Any]] = []
    after = ""
    while True:
        query = [("after", after)] + ([("topic", str(TopicName.parse(topic)))] if topic else [])
        page = client.get(f"/sealing/copies?{urlencode(query)}")
        roots = page["roots"]
        rows += [_row(table, ledger) for table in page["tables"] for ledger in table["ledgers"]]
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
                "found": rows if all_ledgers else lacking,
            }
        )
    else:
        _print(rows if all_ledgers else lacking)
        for problem in refused.values():
            print(textwrap.fill(problem, 80, break_long_words=True))
        print(
            f"{len(rows)} sealed ledgers on {len(roots)} storage roots, {len(lacking)} lack copies"
        )
    if lacking or refused:
        raise CommandError(
            f"{len(lacking)} ledgers lack copies, {len(refused)} storage roots are refused: "
            "run the job replicate_ledgers"
        )


def _row(table: dict[str, Any], ledger: dict[str, Any]) -> dict[str, Any]:
    """How a ledger is: copies are whole if all its files are."""
    states = {
        directory: min(found, key=_WORST.index) for directory, found in ledger["copies"].items()
    }
    count = Counter(states.values())
    return {
        "topic": table["topic"],
        "partition": ledger["partition"],
        "ledgerId": ledger["ledgerId"],
        "entries": ledger["entries"],
        "copies": count["ok"],
        "wanted": len(states),
        "state": min(states.values(), key=_WORST.index),
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
