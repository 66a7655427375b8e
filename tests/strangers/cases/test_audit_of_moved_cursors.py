"""The audit did not say who had moved a cursor.

Did: as a role with ``consume`` only, moved a subscription by ``POST spark-queries/q/acknowledge``,
made another one with ``PUT spark-queries/q2/subscriptions``, and sought one with the client.
Saw: ``pulsark audit show`` had none of these, although it promises every change over HTTP.
Expected: an event for each, with the role, the topic and the subscription.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pulsar

from tests.strangers.conftest import Locked
from tests.support.secured import SUPER_USER, token

TOPIC = "persistent://a/ns/audited"


def _shown(locked: Locked, folder: Path) -> set[tuple[str, str, str]]:
    """Of each event of the role: what happened, to which subscription, and over which port."""
    (folder / "token").write_text(token(SUPER_USER))
    settings = {
        "PULSARK_SERVICE_URL": locked.service_url,
        "PULSARK_ADMIN_URL": locked.web_url,
        "PULSARK_TOKEN_FILE": str(folder / "token"),
    }
    command = [sys.executable, "-m", "pulsark", "audit", "show", "--json", "--role", "a-consume"]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **settings}, timeout=60
    )
    events = [json.loads(line) for line in done.stdout.splitlines()]
    return {
        (e["parameters"]["changed"], e["resource"].get("subscription", ""), e["via"])
        for e in events
        if "changed" in (e.get("parameters") or {}) and e["resource"]["name"] == TOPIC
    }


def test_the_audit_says_who_moved_a_cursor(locked: Locked, tmp_path: Path) -> None:
    client = locked.client("a-both")
    client.create_producer(TOPIC).send(b"x")
    client.subscribe(TOPIC, "app").close()
    client.close()
    place = {"positions": {TOPIC: {"ledgerId": 2**62, "entryId": 0}}}
    for query, subscription, method, end in (
        ("q", "app", "POST", "acknowledge"),
        ("q2", "new", "PUT", "subscriptions"),
    ):
        path = f"/admin/v2/spark-queries/{query}"
        claim = {"client": "c", "subscription": subscription, "topics": [TOPIC]}
        assert locked.http("PUT", path, "a-consume", claim)[0] == 204
        assert locked.http(method, f"{path}/{end}", "a-consume", place)[0] == 200
    reader = locked.client("a-consume")
    consumer = reader.subscribe(TOPIC, "sought")
    consumer.seek(pulsar.MessageId.earliest)
    reader.close()
    expected = {
        ("cursor moved", "app", "rest"),
        ("subscription created", "new", "rest"),
        ("subscription created", "sought", "binary"),
        ("cursor moved", "sought", "binary"),
    }
    deadline = time.monotonic() + 20
    while not expected <= (found := _shown(locked, tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert expected <= found
