"""What clients are told without having asked."""

from __future__ import annotations

import pytest

from pulsark.dispatch.connection.notices import consumer_closed, producer_closed
from pulsark.dispatch.model.service_urls import ServiceUrls

PLAIN, TLS = "pulsar://b2:6650", "pulsar+ssl://b2:6651"


@pytest.mark.parametrize(("plain", "tls"), [(PLAIN, TLS), (PLAIN, ""), ("", TLS), ("", "")])
def test_who_has_to_go_elsewhere_is_told_each_address_that_there_is(plain: str, tls: str) -> None:
    there = ServiceUrls(broker=plain, broker_tls=tls)
    for told in (
        producer_closed(1, there).close_producer,
        consumer_closed(1, there).close_consumer,
    ):
        assert told.assignedBrokerServiceUrl == plain
        assert told.HasField("assignedBrokerServiceUrl") == bool(plain)
        assert told.assignedBrokerServiceUrlTls == tls
        assert told.HasField("assignedBrokerServiceUrlTls") == bool(tls)
