"""Arrow Flight of a real standalone: the entries that a client sent, byte for byte."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow.flight as fl
import pytest

from pulsark.wire.batch import read_messages
from pulsark.wire.flight_refusals import NOT_FOUND
from tests.support.python_client import connect
from tests.support.standalone import Standalone

TOPIC = "persistent://public/default/flight"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("flight") / "data") as standalone:
        client = connect(standalone)
        producer = client.create_producer("flight", batching_enabled=False)
        for i in range(20):
            producer.send(b"message-%d" % i)
        client.close()
        yield standalone


def texts(table: object) -> list[str]:
    return [
        payload.decode()
        for entry in table["entry"].to_pylist()  # type: ignore[index]
        for _, payload in read_messages(entry, 1 << 20)
    ]


def test_a_whole_topic_by_its_descriptor(broker: Standalone) -> None:
    with fl.connect(broker.flight_url) as client:
        info = client.get_flight_info(fl.FlightDescriptor.for_path(TOPIC))
        table = client.do_get(info.endpoints[0].ticket).read_all()
    assert texts(table) == [f"message-{i}" for i in range(20)]


def test_a_range_survives_a_restart(broker: Standalone) -> None:
    with fl.connect(broker.flight_url) as client:
        info = client.get_flight_info(fl.FlightDescriptor.for_path(TOPIC))
        wanted = json.loads(info.endpoints[0].ticket.ticket)
    wanted["first"][1], wanted["last"][1] = 5, 7
    broker.kill()
    broker.start()
    with fl.connect(broker.flight_url) as client:
        table = client.do_get(fl.Ticket(json.dumps(wanted).encode())).read_all()
    assert texts(table) == ["message-5", "message-6", "message-7"]


def test_an_unknown_topic(broker: Standalone) -> None:
    none = fl.FlightDescriptor.for_path("persistent://public/default/none")
    with fl.connect(broker.flight_url) as client:
        with pytest.raises(fl.FlightServerError, match="does not exist") as caught:
            client.get_flight_info(none)
        assert caught.value.extra_info == NOT_FOUND
