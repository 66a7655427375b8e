"""``pulsark tables repair`` on a real standalone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from urllib.request import urlopen

import pulsar
import pytest

from pulsark.runtime import OsDisk
from pulsark.storage.table.log.delta_log import DeltaLog
from tests.support.python_client import connected
from tests.support.seal_contract import admin, tables
from tests.support.standalone import Standalone
from tests.support.tables import attached_files

TOPIC = "persistent://public/default/t"
PATH = "/admin/v2/persistent/public/default/t"
OPTIMIZE = {"commitInfo": {"timestamp": 1, "operation": "OPTIMIZE", "engineInfo": "other/1.0"}}


def publish(broker: Standalone, first: int, count: int) -> None:
    with connected(broker) as client:
        producer = client.create_producer(TOPIC, batching_enabled=False)
        for i in range(first, first + count):
            producer.send(b"%d" % i)


def received(broker: Standalone, name: str, count: int) -> Sequence[int]:
    with connected(broker) as client:
        consumer = client.subscribe(TOPIC, name, initial_position=pulsar.InitialPosition.Earliest)
        found = [int(consumer.receive(60_000).data()) for _ in range(count)]
        with pytest.raises(pulsar.Timeout):
            consumer.receive(200)
    return found


def repair(broker: Standalone, *flags: str) -> tuple[int, str]:
    words = ["tables", "repair", TOPIC, "--admin-url", broker.web_url, *flags]
    done = subprocess.run(
        [sys.executable, "-m", "pulsark", *words], capture_output=True, text=True, timeout=60
    )
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    said = done.stdout if "--json" in flags else done.stdout + done.stderr
    return done.returncode, said  # a slow repair says on stderr how far it is


def test_a_table_whose_directory_is_gone_is_given_up_and_goes_on(standalone: Standalone) -> None:
    publish(standalone, 0, 20)
    admin(standalone, "POST", f"{PATH}/seal")
    (directory,) = tables(standalone)
    shutil.rmtree(directory)
    standalone.stop()
    standalone.start()
    publish(standalone, 20, 5)
    with pytest.raises(OSError, match="HTTP Error"):
        admin(standalone, "POST", f"{PATH}/seal")
    code, text = repair(standalone)
    assert code == 1
    assert "are lost" in text
    assert "--give-up" in text
    code, text = repair(standalone, "--give-up", "--json")
    assert code == 0, text
    done = json.loads(text)
    assert (done["filesLost"], done["entriesGivenUp"], done["topic"]) == (0, 20, TOPIC)
    admin(standalone, "POST", f"{PATH}/seal")
    assert received(standalone, "all", 5) == list(range(20, 25))
    standalone.stop()
    standalone.start()
    publish(standalone, 25, 5)
    admin(standalone, "POST", f"{PATH}/seal")
    assert received(standalone, "again", 10) == list(range(20, 30))
    assert repair(standalone)[0] == 0


def test_what_somebody_else_wrote_is_shown_until_it_is_repaired(
    standalone: Standalone,
) -> None:
    publish(standalone, 0, 20)
    admin(standalone, "POST", f"{PATH}/seal")
    (directory,) = tables(standalone)
    log = DeltaLog(OsDisk(), str(directory))
    (file,) = attached_files(OsDisk(), str(directory))[1]
    removes = {"remove": {"path": file.path, "dataChange": False, "deletionTimestamp": 1}}
    log.write(2, b"".join(json.dumps(each).encode() + b"\n" for each in (OPTIMIZE, removes)))
    publish(standalone, 20, 5)
    admin(standalone, "POST", f"{PATH}/seal")
    (other,) = admin(standalone, "GET", f"{PATH}/table")["changedByOthers"]
    assert (other["version"], other["what"]) == (2, "OPTIMIZE by other/1.0")
    where = f'cluster="standalone",namespace="public/default",topic="{TOPIC}"'
    with urlopen(f"{standalone.web_url}/metrics", timeout=60) as answer:
        assert f"pulsark_table_changed_by_others{{{where}}} 1" in answer.read().decode()
    assert f"pulsark tables repair {TOPIC}" in standalone.log_path.read_text()
    code, text = repair(standalone)
    assert code == 0
    assert "Repaired the table" in text
    assert admin(standalone, "GET", f"{PATH}/table")["changedByOthers"] == []
    assert received(standalone, "all", 25) == list(range(25))
