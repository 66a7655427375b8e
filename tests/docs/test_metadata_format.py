"""``docs/formats/metadata.md`` names every path of a real metadata store, with its fields."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pulsar
import pytest
from pulsar.schema import JsonSchema, Record, String

from pulsark.admin_client.client import AdminClient
from tests.docs.reader import ROOT
from tests.docs.snippets import Snippet, snippets
from tests.support.python_client import connect
from tests.support.standalone import Standalone

FORMATS = ROOT / "docs" / "formats"
DOCUMENT = FORMATS / "metadata.md"


RARE = {
    "/audit/<broker>",
    "/bookkeeper",
    "/doomed-tables/<id>",
    "/loadbalance/assigned/<tenant>/<namespace>/<bundle>",
    "/loadbalance/moved",
    "/managed-ledger-runs/<topic id>/<first ledger>-<last ledger>",
    "/removed-ledgers/<id>",
    "/sealed-apart/<topic>",
    "/secrets/broker-calls",
}
"""What faults, years, several brokers and clusters bring; their formats have tests of their own."""


class Order(Record):  # type: ignore[misc]
    what = String()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, bytes]]:
    """Every value in the metadata store of a standalone that has seen all kinds of use."""
    data = tmp_path_factory.mktemp("metadata") / "data"
    sealing = {"PULSARK_sealEnabled": "true", "PULSARK_sealFreshnessSeconds": "1"}
    with Standalone(data, env=sealing) as standalone:
        admin = AdminClient(standalone.web_url)
        admin.call("PUT", "/persistent/public/default/parted/partitions", 2)
        admin.call("POST", "/persistent/public/default/parted/maxProducers", 3)
        admin.call("PUT", "/resourcegroups/gold", {"publishRateInMsgs": 100})
        admin.call("POST", "/brokers/configuration/maxTenants/500")
        rack = {"rack": "/rack-1", "hostname": "bk1"}
        admin.call("POST", "/bookies/racks-info/bk1:3181?group=default", rack)
        failover = {"min_limit": "1", "usage_threshold": "100"}
        isolation = {
            "namespaces": ["none/.*"],
            "primary": ["nobody"],
            "auto_failover_policy": {"policy_type": "min_available", "parameters": failover},
        }
        admin.call("POST", "/clusters/standalone/namespaceIsolationPolicies/p", isolation)
        client = connect(standalone)
        client.subscribe("orders of the day", "kitchen")
        client.create_producer("parted").send(b"one")
        client.create_producer("typed", schema=JsonSchema(Order)).send(Order(what="espresso"))
        client.subscribe("later", "s", consumer_type=pulsar.ConsumerType.Shared)
        producer = client.create_producer("later")
        for _ in range(1000):
            producer.send_async(b"", None, deliver_after=timedelta(hours=1))
        producer.flush()
        admin.call("PUT", "/persistent/public/default/later/unload")
        client.close()
        wait_until_something_is_sealed(data)
        standalone.kill()  # a clean stop would remove what is ephemeral
    with sqlite3.connect(data / "metadata.db") as database:
        rows = database.execute("SELECT parent, name, value FROM node WHERE value NOT NULL")
        yield {f"{parent.rstrip('/')}/{name}": value for parent, name, value in rows}
    database.close()


def wait_until_something_is_sealed(data: Path) -> None:
    deadline = time.monotonic() + 30
    while True:
        with sqlite3.connect(data / "metadata.db") as database:
            found = database.execute(
                "SELECT count(*) FROM node WHERE parent LIKE '/tables/%/%/%/%' AND value NOT NULL"
            ).fetchone()
        database.close()
        if found[0] > 1:
            return
        assert time.monotonic() < deadline
        time.sleep(0.2)


def documented() -> dict[str, tuple[str, str]]:
    """For each row of the table: its path, what it links to, and its version."""
    rows = re.findall(
        r"^\| `(/[^`]+)` \| \[[^\]]+\]\(([^)]+)\)[^|]*\| (\S+) \|$", DOCUMENT.read_text(), re.M
    )
    return {path: (target, version) for path, target, version in rows}


def fields(target: str) -> set[str]:
    """Keys of the JSON example below the heading that a link leads to; none without example."""
    name, _, anchor = target.partition("#")
    document = FORMATS / name if name else DOCUMENT
    example = next((s for s in snippets(document) if heading(document, s) == anchor), None)
    return set(json.loads(example.text)) if example is not None else set()


def heading(document: Path, snippet: Snippet) -> str:
    above = document.read_text().splitlines()[: snippet.line]
    title = next(line for line in reversed(above) if line.startswith("#"))
    return re.sub(r"[^\w -]", "", title.lstrip("# ").lower()).replace(" ", "-")


def test_every_path_is_documented(nodes: dict[str, bytes]) -> None:
    patterns = {
        row: re.compile("".join("[^/]+" if p.startswith("<") else p for p in split(row)))
        for row in documented()
    }
    seen = set()
    for path, value in nodes.items():
        rows = [row for row, pattern in patterns.items() if pattern.fullmatch(path)]
        assert len(rows) == 1, path
        seen.update(rows)
        target, version = documented()[rows[0]]
        record = json.loads(value)
        if version == "-":
            assert isinstance(record, int) or "version" not in record, path
        else:
            oldest, _, newest = version.partition("-")
            assert int(oldest) <= record["version"] <= int(newest or oldest), path
            if record["version"] > int(oldest):
                continue  # the example is of the oldest version
        if (expected := fields(target)) and isinstance(record, dict):
            assert set(record) == expected, path
    assert seen | RARE == set(documented())


def split(row: str) -> list[str]:
    return re.split(r"(<[^>]+>)", row)


def test_the_tables_of_the_embedded_store(tmp_path: Path, nodes: dict[str, bytes]) -> None:
    statements = next(s.text for s in snippets(FORMATS / "ledger.md") if s.language == "sql")
    with sqlite3.connect(":memory:") as written:
        written.executescript(statements)
        expected = tables(written)
    with Standalone(tmp_path / "data") as standalone:
        standalone.kill()
    with sqlite3.connect(tmp_path / "data" / "metadata.db") as real:
        assert tables(real) == expected
    for database in (written, real):
        database.close()


def tables(database: sqlite3.Connection) -> dict[str, object]:
    return {
        name: [database.execute(f"PRAGMA {what}({name})").fetchall() for what in PRAGMAS]
        for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type != 'trigger'")
    }


PRAGMAS = ("table_info", "index_info")
