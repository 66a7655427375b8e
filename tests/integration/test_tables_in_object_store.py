"""A topic's table in an object store: consumers, engines and jobs see no difference."""

from __future__ import annotations

import contextlib
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import obstore
import polars as pl
import pulsar
import pytest
from obstore.store import S3Store

from pulsark.cli.backup import make_backup
from pulsark.cli.doctor.data_dir import examine
from pulsark.cli.doctor.finding import FAILURE, OK
from pulsark.cli.doctor.stopped import Stopped
from pulsark.config.sources import load_settings
from pulsark.storage.roots.task_files import task_files
from tests.integration.test_replicate_ledgers import replicate
from tests.integration.test_sealing_live import consumed, publish
from tests.support.hurried import HURRIED
from tests.support.local_cluster import LocalCluster
from tests.support.python_client import connect
from tests.support.s3_faults import Fault, FaultyStore
from tests.support.s3_server import ACCESS, BUCKET, S3Server
from tests.support.standalone import Standalone

ROOT = f"s3://{BUCKET}/cluster-1"
SETTINGS = {
    **HURRIED,
    **ACCESS,
    "PULSARK_tableRoots": ROOT,
    "PULSARK_objectStoreTimeoutSeconds": "1",
    "PULSARK_objectStoreRetrySeconds": "1",
    "PULSARK_sealFreshnessSeconds": "1",
    "PULSARK_managedLedgerMaxEntriesPerLedger": "40",
    "PULSARK_managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "PULSARK_journalMaxSizeMB": "1",
    "PULSARK_tableVacuumRetentionHours": "0",
}
WAIT_SECONDS = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3") / "log") as running:
        yield running


@pytest.fixture(scope="module")
def faulty(server: S3Server) -> Iterator[FaultyStore]:
    with FaultyStore(server.port) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def standalone(
    tmp_path_factory: pytest.TempPathFactory, faulty: FaultyStore
) -> Iterator[Standalone]:
    env = {**SETTINGS, "PULSARK_objectStoreEndpoint": faulty.url}
    with Standalone(tmp_path_factory.mktemp("standalone") / "data", env=env) as process:
        yield process


class Bucket:
    """What is in the store, past all proxies."""

    def __init__(self, server: S3Server) -> None:
        self._server = server
        self._store = S3Store(
            BUCKET,
            endpoint=server.url,
            access_key_id="a",
            secret_access_key="b",
            client_options={"allow_http": True},
        )

    def names(self, part: str) -> list[str]:
        found = [str(meta["path"]) for page in obstore.list(self._store) for meta in page]
        return sorted(name for name in found if part in name)

    def put(self, name: str, content: bytes) -> None:
        obstore.put(self._store, name, content)

    def rows(self, table: str) -> int:
        options = {
            "endpoint_url": self._server.url,
            "access_key_id": "a",
            "secret_access_key": "b",
            "region": "us-east-1",
            "allow_http": "true",
        }
        try:
            frame = pl.scan_delta(table, storage_options=options)
            return int(frame.select(pl.len()).collect().item())
        except Exception:
            return -1


@pytest.fixture
def bucket(server: S3Server) -> Bucket:
    return Bucket(server)


@pytest.fixture(autouse=True)
def without_faults(faulty: FaultyStore) -> Iterator[None]:
    faulty.next()
    yield
    faulty.next()


def ask(
    standalone: Standalone,
    path: str,
    method: str = "GET",
    body: Any = None,
    *,
    missing: bool = False,
) -> Any:
    url = f"{standalone.web_url}/admin/v2/persistent/public/default/{path}"
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
    except urllib.error.HTTPError as error:
        if missing and error.code == 404:
            return None
        raise
    return json.loads(text) if text else None


def table_of(standalone: Standalone, topic: str) -> str:
    eventually(lambda: ask(standalone, f"{topic}/table", missing=True) is not None, True)
    return str(ask(standalone, f"{topic}/table")["uri"])


def eventually(what: Callable[[], object], wanted: object) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while (found := what()) != wanted:
        assert time.monotonic() < deadline, f"{found} and not {wanted}"
        time.sleep(0.1)


@pytest.mark.slow
def test_consumers_read_from_the_store_what_left_the_journal(
    standalone: Standalone, bucket: Bucket
) -> None:
    publish(standalone, "flights", 0, 1000, batched=True)
    publish(standalone, "flights", 1000, 100, batched=False)
    before = consumed(standalone, "flights", "before", 1100)
    eventually(lambda: bucket.rows(table_of(standalone, "flights")), 1100)
    assert table_of(standalone, "flights").startswith(f"{ROOT}/public/default/")
    standalone.kill()
    standalone.start()
    assert consumed(standalone, "flights", "after", 1100) == before


def test_no_table_is_on_the_disk_and_no_secret_anywhere(standalone: Standalone) -> None:
    assert list(standalone.data_dir.rglob("*.parquet")) == []
    for path in standalone.data_dir.parent.rglob("*"):
        with contextlib.suppress(IsADirectoryError, FileNotFoundError):  # the journal is collected
            assert ACCESS["AWS_SECRET_ACCESS_KEY"].encode() not in path.read_bytes(), path


@pytest.mark.parametrize(
    "fault",
    ["hang", *(pytest.param(f, marks=pytest.mark.chaos) for f in ("refused", "gone", "denied"))],
)
def test_nothing_is_lost_and_nobody_waits_while_the_store_fails(
    standalone: Standalone, faulty: FaultyStore, bucket: Bucket, fault: Fault
) -> None:
    topic = f"while-{fault}"
    publish(standalone, topic, 0, 100, batched=True)
    eventually(lambda: bucket.rows(table_of(standalone, topic)), 100)
    logged = standalone.log_path.stat().st_size
    faulty.seen.clear()
    faulty.rule = lambda method, path: fault
    client = connect(standalone)
    producer = client.create_producer(topic, batching_enabled=False)
    sent, meanwhile, failing = 0, 0, 0.0
    while not failing or time.monotonic() < failing + 2:
        producer.send(b"value")
        sent += 1
        meanwhile += failing > 0
        time.sleep(0.02)
        if faulty.seen and not failing:
            failing = time.monotonic()
    client.close()
    faulty.let_go()
    # One that waited for the store would take a second or more.
    assert meanwhile >= 20, f"only {meanwhile} were published in 2 s"
    eventually(lambda: bucket.rows(table_of(standalone, topic)), 100 + sent)
    assert len(consumed(standalone, topic, "all", 100 + sent)) == 100 + sent
    with standalone.log_path.open("rb") as log:
        log.seek(logged)
        lines = [line for line in log.read().decode().splitlines() if " store_pause: " in line]
    assert len(lines) <= 4, "\n".join(lines)  # it fails and answers, in the broker and in sealing


@pytest.mark.chaos
def test_commits_whose_answers_are_lost_are_made_once(
    standalone: Standalone, faulty: FaultyStore, bucket: Bucket
) -> None:
    commits = set[str]()

    def rule(method: str, path: str) -> Any:
        if method == "PUT" and path.endswith(".json") and path not in commits:
            commits.add(path)
            return "lost"
        return "pass"

    faulty.rule = rule
    for first in range(0, 300, 100):
        publish(standalone, "lost", first, 100, batched=True)
        eventually(lambda: bucket.rows(table_of(standalone, "lost")), first + 100)
    place = table_of(standalone, "lost").removeprefix(f"s3://{BUCKET}/")
    names = bucket.names(f"{place}/_delta_log/")
    assert [name.rpartition("/")[2] for name in names] == [
        f"{n:020d}.json" for n in range(len(names))
    ]
    assert len(commits) >= 3
    assert len(consumed(standalone, "lost", "all", 300)) == 300


def test_a_broker_starts_without_its_store_and_goes_on_with_it(
    standalone: Standalone, faulty: FaultyStore, bucket: Bucket
) -> None:
    publish(standalone, "away", 0, 200, batched=True)
    eventually(lambda: bucket.rows(table_of(standalone, "away")), 200)
    standalone.stop()
    faulty.rule = lambda method, path: "gone"
    standalone.start()
    publish(standalone, "away", 200, 200, batched=True)
    client = connect(standalone)
    consumer = client.subscribe("away", "s", initial_position=pulsar.InitialPosition.Earliest)
    faulty.next()
    for _ in range(400):
        consumer.receive(60_000)
    client.close()
    eventually(lambda: bucket.rows(table_of(standalone, "away")), 400)


def worked(standalone: Standalone, topic: str, **work: Any) -> dict[str, Any]:
    """The result of what a job asks for."""
    path = f"{topic}/table/work/{work['do']}-{topic}"
    state = ask(standalone, path, "PUT", work)
    while state["status"] == "RUNNING":
        time.sleep(0.1)
        state = ask(standalone, path)
    assert state["status"] == "SUCCESS", state
    return dict(state["result"])


def test_what_is_done_to_tables_is_done_in_the_store(
    standalone: Standalone, bucket: Bucket
) -> None:
    client = connect(standalone)
    producer = client.create_producer("worked", batching_enabled=False)
    ids = [producer.send(b"%d" % n, partition_key=f"k{n % 10}") for n in range(60)]
    client.close()
    ask(standalone, "worked/seal", "POST")
    table = table_of(standalone, "worked")
    place = table.removeprefix(f"s3://{BUCKET}/")
    files = set(bucket.names(f"{place}/partition="))
    entry = [ids[5].ledger_id(), [[ids[5].entry_id(), None]]]
    done = worked(standalone, "worked", do="erase", ids=[entry])
    assert (done["entries"], done["missing"]) == (1, 0)
    assert worked(standalone, "worked", do="finishErasure", vacuumHours=0)["oldFiles"] == 0
    assert len(files - set(bucket.names(f"{place}/partition="))) == 1
    assert worked(standalone, "worked", do="compact")["removed"] == 49
    log = f"{place}/_delta_log/"
    newest = int(bucket.names(log)[-1].rpartition("/")[2].partition(".")[0])
    other = b'{"commitInfo":{"timestamp":1,"operation":"OPTIMIZE","engineInfo":"other/1.0"}}\n'
    bucket.put(f"{log}{newest + 1:020d}.json", other)
    publish(standalone, "worked", 100, 10, batched=True)
    ask(standalone, "worked/seal", "POST")
    assert len(ask(standalone, "worked/table")["changedByOthers"]) == 1
    assert worked(standalone, "worked", do="repair", giveUp=False)["filesLost"] == 0
    assert ask(standalone, "worked/table")["changedByOthers"] == []
    assert ask(standalone, "worked/table/retention", "POST")["rows"] == 0
    assert len(consumed(standalone, "worked", "all", 69)) == 69


def test_tools_for_a_stopped_broker_know_the_store(
    standalone: Standalone,
    faulty: FaultyStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    publish(standalone, "doctored", 0, 10, batched=True)
    ask(standalone, "doctored/seal", "POST")
    standalone.stop()
    for name, value in {**SETTINGS, "PULSARK_objectStoreEndpoint": faulty.url}.items():
        monkeypatch.setenv(name, value)
    flags = {"dataDir": str(standalone.data_dir)}
    settings = load_settings(environment=os.environ, flags=flags).settings

    def statuses() -> dict[str, str]:
        return {each.check: each.status for each in examine(Stopped(settings))}

    assert set(statuses().values()) == {OK}
    faulty.rule = lambda method, path: "denied"
    assert statuses()["root"] == FAILURE
    assert make_backup(str(tmp_path / "backup"), str(standalone.data_dir), None, as_json=False)
    assert "(tableRoots) are not in it" in capsys.readouterr().err
    faulty.next()
    standalone.start()


@pytest.mark.chaos
def test_tables_move_from_the_disk_into_the_store(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: Bucket
) -> None:
    env = {**ACCESS, "PULSARK_objectStoreEndpoint": server.url}
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    task_files.cache_clear()
    root = f"s3://{BUCKET}/moved"
    with Standalone(tmp_path / "data", env=env) as broker:
        publish(broker, "t", 0, 50, batched=True)
        ask(broker, "t/seal", "POST")
    with Standalone(tmp_path / "data", env={**env, "PULSARK_tableRoots": root}) as broker:
        assert replicate(broker, "--verify") == 0
        assert table_of(broker, "t").startswith(root)
        publish(broker, "t", 50, 10, batched=True)
        ask(broker, "t/seal", "POST")
        assert bucket.rows(table_of(broker, "t")) == 60
        assert len(consumed(broker, "t", "all", 60)) == 60
    task_files.cache_clear()


@pytest.mark.chaos
def test_brokers_of_a_cluster_have_their_tables_in_the_store(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: Bucket
) -> None:
    for name, value in ACCESS.items():
        monkeypatch.setenv(name, value)
    root = f"s3://{BUCKET}/of-a-cluster"
    told = {"tableRoots": f"{root}/", "objectStoreEndpoint": server.url, "sealFreshnessSeconds": 1}
    given = [f"--set={key}={value}" for key, value in told.items()]
    with LocalCluster(tmp_path / "data", *given) as cluster:
        publish(cluster, "t", 0, 300, batched=True)
        eventually(lambda: bucket.rows(table_of(cluster, "t")), 300)
        assert table_of(cluster, "t").startswith(f"{root}/public/default/")
        cluster.stop()
        cluster.start()
        assert len(consumed(cluster, "t", "all", 300)) == 300


def test_a_deleted_topic_leaves_nothing_behind(standalone: Standalone, bucket: Bucket) -> None:
    publish(standalone, "deleted", 0, 100, batched=True)
    table = table_of(standalone, "deleted")
    eventually(lambda: bucket.rows(table), 100)
    ask(standalone, "deleted?force=true", "DELETE")
    eventually(lambda: bucket.names(table.removeprefix(f"s3://{BUCKET}/")), [])
