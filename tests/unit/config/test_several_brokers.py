"""Ports and memory of several brokers on one machine."""

from __future__ import annotations

import pytest

from pulsark.config.settings import Settings
from pulsark.config.several_brokers import of_broker, own_ports
from pulsark.errors import ConfigError


def test_each_broker_has_ports_of_its_own() -> None:
    settings = Settings(standaloneBrokers=2, webServicePortTls=8443)
    assert own_ports(settings, 0) == {
        "brokerServicePort": 6660,
        "webServicePort": 8090,
        "webServicePortTls": 8453,
        "flightServicePort": 8815,
    }
    assert own_ports(settings, 1) == {
        "brokerServicePort": 6670,
        "webServicePort": 8100,
        "webServicePortTls": 8463,
        "flightServicePort": 8825,
    }


def test_any_free_port_is_any_for_each() -> None:
    settings = Settings(brokerServicePort=0, webServicePort=None, flightServicePort=0)
    assert own_ports(settings, 7) == {"brokerServicePort": 0, "flightServicePort": 0}


def test_memory_is_divided() -> None:
    settings = Settings(standaloneBrokers=4, maxMessagePublishBufferSizeInMB=-1)
    one = of_broker(settings, 3)
    assert one.managedLedgerCacheSizeMB == settings.managedLedgerCacheSizeMB // 4
    assert one.maxMessagePublishBufferSizeInMB == -1
    assert one.standaloneBrokers == 1
    assert of_broker(Settings(standaloneBrokers=16, managedLedgerCacheSizeMB=1), 0)


@pytest.mark.parametrize(
    ("ports", "message"),
    [
        ({"webServicePort": 6660}, "brokerServicePort: that of broker 0 would be 6660"),
        ({"brokerServicePort": 65_520}, "broker 1 would be 65540, which is none"),
        ({"flightServicePort": 6670}, "which is brokerServicePort of broker 1|flight"),
    ],
)
def test_ports_that_meet_are_refused(ports: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Settings(standaloneBrokers=2, **ports)  # type: ignore[arg-type]
    Settings(**ports)  # type: ignore[arg-type]


@pytest.mark.feature("F50")
def test_a_broker_may_serve_one_kind_of_topic() -> None:
    settings = Settings(
        standaloneBrokers=3,
        standalonePersistentOnlyBrokers=("0", "9"),
        standaloneNonPersistentOnlyBrokers=("2",),
    )
    brokers = [of_broker(settings, number) for number in range(3)]
    assert [each.enablePersistentTopics for each in brokers] == [True, True, False]
    assert [each.enableNonPersistentTopics for each in brokers] == [False, True, True]


@pytest.mark.parametrize(
    "changed",
    [
        {"standalonePersistentOnlyBrokers": ("1",)},
        {"enableNonPersistentTopics": False},
    ],
)
def test_a_broker_serves_some_kind(changed: dict[str, object]) -> None:
    of_two = {"standaloneBrokers": 2, "standaloneNonPersistentOnlyBrokers": ("1",), **changed}
    with pytest.raises(ConfigError, match="broker 1 would serve topics of neither kind"):
        Settings(**of_two)  # type: ignore[arg-type]
    Settings(**{**of_two, "standaloneBrokers": 1})  # type: ignore[arg-type]
