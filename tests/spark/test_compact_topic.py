"""The job that compacts topics with more keys than a broker does by itself, as users submit it."""

from __future__ import annotations

from pathlib import Path

import pulsar
import pytest

from pulsark.cli.admin.topics import compact_topic
from pulsark.cli.terminal.errors import CommandError
from tests.support.few_keys import KEYS_MAX
from tests.support.python_client import connected
from tests.support.standalone import Standalone
from tests.support.submitted import submitted

TOPIC = "persistent://public/default/prices"
KEYS = 10 * KEYS_MAX


def compacted(client: pulsar.Client) -> dict[str, bytes]:
    """What a reader of the compacted topic receives, by key."""
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest, is_read_compacted=True)
    found: dict[str, bytes] = {}
    while reader.has_message_available():
        message = reader.read_next(10_000)
        if message.partition_key():  # members that were removed come without anything
            assert message.partition_key() not in found
            found[message.partition_key()] = message.data()
    reader.close()
    return found


@pytest.mark.feature("F91")
def test_more_keys_than_the_broker_takes_under_spark_submit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULSARK_TEST_MAIN", "-m tests.support.few_keys")
    with Standalone(tmp_path / "data") as broker:
        with connected(broker) as client:
            producer = client.create_producer(
                TOPIC, batching_max_messages=50, block_if_queue_full=True
            )
            for number in range(2 * KEYS):
                key = f"k{number % KEYS}"
                producer.send_async(b"%d" % number, lambda *_: None, partition_key=key)
            producer.flush()
            with pytest.raises(CommandError, match=f"more than {KEYS_MAX} keys"):
                compact_topic(TOPIC, admin_url=broker.web_url)
            found = submitted("compact_topic", broker, "--topic", TOPIC)
            assert (found["partitions"], found["removed"]) == (1, KEYS)
            latest = {f"k{n}": b"%d" % (KEYS + n) for n in range(KEYS)}
            assert compacted(client) == latest
        broker.kill()
        broker.start()
        with connected(broker) as client:
            assert compacted(client) == latest
