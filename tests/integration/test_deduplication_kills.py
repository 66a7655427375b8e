"""Deduplication over kills: of the broker under producers, and of an application with it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pulsar
import pytest

from tests.support.python_client import connected
from tests.support.standalone import Standalone

TOPIC = "persistent://public/default/once"
MESSAGES = 20_000
KILLS = 4
WAIT_SECONDS = 60.0
SETTINGS = {
    "PULSARK_brokerDeduplicationEnabled": "true",
    "PULSARK_brokerDeduplicationEntriesInterval": "300",
}


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {WAIT_SECONDS:.0f} s: {what}")
        time.sleep(0.005)


def stored(client: pulsar.Client, topic: str) -> list[tuple[str, int]]:
    """Producer and payload of each message, in the topic's order."""
    found = []
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    while reader.has_message_available():
        message = reader.read_next(60_000)
        found.append((message.producer_name(), int(message.data())))
    reader.close()
    return found


@pytest.mark.slow
@pytest.mark.feature("F54", "F55")
def test_what_clients_send_again_after_kills_is_stored_once(tmp_path: Path) -> None:
    with Standalone(tmp_path / "data", env=SETTINGS) as broker, connected(broker) as client:
        confirmed: dict[str, set[int]] = {"single": set(), "batched": set()}

        def publish(name: str) -> None:
            producer = client.create_producer(
                TOPIC,
                producer_name=name,
                batching_enabled=name == "batched",
                batching_max_publish_delay_ms=2,
                max_pending_messages=1000,
                block_if_queue_full=True,
                send_timeout_millis=0,
            )
            for number in range(MESSAGES):
                producer.send_async(
                    b"%d" % number,
                    lambda result, _, n=number: (
                        confirmed[name].add(n) if result == pulsar.Result.Ok else None
                    ),
                )
            producer.flush()

        threads = [
            threading.Thread(target=publish, args=(name,), daemon=True) for name in confirmed
        ]
        for thread in threads:
            thread.start()
        for kill in range(1, KILLS + 1):
            for name in confirmed:
                share = MESSAGES * kill // (KILLS + 1)
                wait_for(lambda n=name, s=share: len(confirmed[n]) >= s, f"{share} of {name}")
            broker.kill()
            broker.start()
        for thread in threads:
            thread.join(WAIT_SECONDS)
            assert not thread.is_alive()
        log = stored(client, TOPIC)
        for name, numbers in confirmed.items():
            assert numbers == set(range(MESSAGES))
            assert [number for producer, number in log if producer == name] == list(range(MESSAGES))


APPLICATION = """
import sys, pulsar
client = pulsar.Client(sys.argv[1], logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
producer = client.create_producer(
    sys.argv[2], producer_name="application", batching_enabled=True, batching_max_messages=50,
    batching_max_publish_delay_ms=2, block_if_queue_full=True, send_timeout_millis=0,
)
position = producer.last_sequence_id()  # of the source: a message for every seventh place
print("from", position, flush=True)
for place in range(0, 7 * int(sys.argv[3]), 7):
    if place > position:
        producer.send_async(b"%d" % place, lambda *_: None, sequence_id=place)
producer.flush()
print("done", flush=True)
client.close()
"""


@pytest.mark.slow
@pytest.mark.feature("F56")
def test_an_application_that_goes_on_where_it_was_writes_everything_once(tmp_path: Path) -> None:
    messages = 30_000

    def start(broker: Standalone) -> subprocess.Popen[str]:
        args = [sys.executable, "-c", APPLICATION, broker.service_url, TOPIC, str(messages)]
        return subprocess.Popen(args, stdout=subprocess.PIPE, text=True)

    begun = []
    with Standalone(tmp_path / "data", env=SETTINGS) as broker, connected(broker) as client:
        for kill in range(6):
            application = start(broker)
            assert application.stdout is not None
            begun.append(int(application.stdout.readline().split()[1]))
            time.sleep(0.1 + 0.05 * kill)
            if kill % 2:
                broker.kill()
                application.kill()
                broker.start()
            else:
                application.kill()
            application.wait(60)
        application = start(broker)
        output, _ = application.communicate(timeout=WAIT_SECONDS)
        assert output.split()[-1] == "done"
        places = [place for _, place in stored(client, TOPIC)]
    assert places == list(range(0, 7 * messages, 7))
    assert begun[0] == -1
    assert begun == sorted(begun)
    assert begun[-1] > 0
