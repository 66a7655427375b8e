"""What a broker has loaded after it started and stored its first message."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {
    "bcrypt",
    "cryptography",
    "deltalake",
    "fastapi",
    "fastavro",
    "jwt",
    "kazoo",
    "numpy",
    "obstore",
    "pandas",
    "passlib",
    "prometheus_client",
    "pyarrow",
    "pydantic",
    "pyspark",
    "rich",
    "starlette",
    "typer",
    "uvicorn",
    "zstandard",
}

OF_SECURITY = {
    "pulsark.security",
    "pulsark.security.acceptor",
    "pulsark.security.connection_slots",
    "pulsark.security.decisions",
    "pulsark.security.effects",
    "pulsark.security.grants",
    "pulsark.security.limits",
    "pulsark.security.networks",
    "pulsark.security.operations",
    "pulsark.security.peer",
    "pulsark.security.plain_listener",
    "pulsark.security.seldom_warnings",
    "pulsark.security.trials",
}
"""What is loaded of the room of logins and rights while nothing of it is on: small modules."""

OF_SCHEMAS = {
    "pulsark.schemas",
    "pulsark.schemas.column_types",
    "pulsark.schemas.definition",
    "pulsark.schemas.strategies",
    "pulsark.schemas.value_schemas",
}
"""What is loaded of schemas while no topic has one: nothing that parses or compares."""

OF_BUNDLES = {
    "pulsark.dispatch.brokers.isolation",
    "pulsark.dispatch.brokers.shedding",
    "pulsark.dispatch.brokers.splitting",
    "pulsark.storage.cursor.division",
}
"""What is loaded once there are isolation policies, or a bundle is divided."""

OF_TABLES = {
    "pulsark.dispatch.tables.attach_for_others",
    "pulsark.dispatch.tables.bulk_publishing",
    "pulsark.dispatch.tables.erasure",
    "pulsark.dispatch.tables.sealed_copies",
    "pulsark.dispatch.tables.sealing_jobs",
    "pulsark.dispatch.tables.table_retention",
    "pulsark.dispatch.tables.tidying",
    "pulsark.storage.table.attach",
    "pulsark.storage.table.log.delta_log",
    "pulsark.storage.table.log.log_check",
    "pulsark.storage.table.log.log_content",
    "pulsark.storage.table.log.log_repair",
    "pulsark.storage.table.log.missing_statistics",
    "pulsark.storage.table.log.root_log",
    "pulsark.storage.table.repair",
    "pulsark.storage.table.table",
    "pulsark.storage.table.table_repair",
    "shutil",
}
"""What is loaded once a table is opened, or somebody asks for it."""

SCRIPT = """
import asyncio, json, sys
import uvloop
from pulsark.config.settings import Settings
from pulsark.standalone import Standalone
from pulsark.runtime import Runtime
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.entry import build_entry
from pulsark.wire.frames import FrameDecoder, encode_command, send_frame

async def main():
    settings = Settings(
        dataDir=sys.argv[1], brokerServicePort=0, webServicePort=0, flightServicePort=0,
        managedLedgerDefaultEnsembleSize=1, managedLedgerDefaultWriteQuorum=1,
        managedLedgerDefaultAckQuorum=1,
    )
    standalone = Standalone(settings, Runtime(), lambda error: None)
    info = await standalone.start()
    port = int(info["brokerServiceUrl"].rsplit(":", 1)[1])
    reader, writer = await asyncio.open_connection("localhost", port)
    decoder = FrameDecoder(1 << 20)

    async def ask(data):
        writer.write(data)
        while not (found := decoder.receive(await reader.read(65536))):
            pass
        return found[0][0]

    command = pb.BaseCommand(type=pb.BaseCommand.CONNECT)
    command.connect.client_version = "test"
    command.connect.protocol_version = 19
    await ask(encode_command(command))
    command = pb.BaseCommand(type=pb.BaseCommand.PRODUCER)
    command.producer.topic = "t"
    command.producer.producer_id = command.producer.request_id = 1
    await ask(encode_command(command))
    command = pb.BaseCommand(type=pb.BaseCommand.SEND)
    command.send.producer_id = command.send.sequence_id = 1
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    reply = await ask(send_frame(command, build_entry(metadata, b"x")))
    assert reply.type == pb.BaseCommand.SEND_RECEIPT, reply
    pages = int(open("/proc/self/statm").read().split()[1])
    modules = sorted({name.split(".")[0] for name in sys.modules})
    security = sorted(name for name in sys.modules if name.startswith("pulsark.security"))
    schemas = sorted(name for name in sys.modules if name.startswith("pulsark.schemas"))
    words = ("scalable", "namespace_watches", "layout_fields")
    v5 = [name for name in sys.modules if any(word in name for word in words)]
    audit = [name for name in sys.modules if "audit" in name]
    rss_mb = pages * 4096 / 1e6
    found = {"modules": modules, "all": sorted(sys.modules), "security": security}
    print(json.dumps(found | {"schemas": schemas, "v5": v5, "audit": audit, "rss_mb": rss_mb}))
    await standalone.stop()

uvloop.run(main())
"""


@pytest.mark.feature("F90")
def test_an_idle_broker_is_small(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "data")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert HEAVY & set(found["modules"]) == set()
    assert set(found["security"]) == OF_SECURITY
    assert set(found["schemas"]) == OF_SCHEMAS
    assert (OF_TABLES | OF_BUNDLES) & set(found["all"]) == set()
    assert found["v5"] == []
    assert found["audit"] == []
    assert found["rss_mb"] < 65
