"""What no single setting can know: which values fit together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.config.several_brokers import check_kinds, check_own_ports
from pulsark.errors import ConfigError

if TYPE_CHECKING:
    from pulsark.config.settings import Settings


def check_together(settings: Settings) -> None:
    """Raises ``ConfigError`` naming the keys and the cure."""
    ensemble = settings.managedLedgerDefaultEnsembleSize
    write = settings.managedLedgerDefaultWriteQuorum
    ack = settings.managedLedgerDefaultAckQuorum
    if write > ensemble:
        raise ConfigError(
            f"managedLedgerDefaultWriteQuorum={write}: at most "
            f"managedLedgerDefaultEnsembleSize={ensemble} is allowed"
        )
    if ack > write:
        raise ConfigError(
            f"managedLedgerDefaultAckQuorum={ack}: at most "
            f"managedLedgerDefaultWriteQuorum={write} is allowed"
        )
    shortest = settings.managedLedgerMinLedgerRolloverTimeMinutes
    if shortest > settings.managedLedgerMaxLedgerRolloverTimeMinutes:
        raise ConfigError(
            f"managedLedgerMinLedgerRolloverTimeMinutes={shortest}: at most "
            "managedLedgerMaxLedgerRolloverTimeMinutes="
            f"{settings.managedLedgerMaxLedgerRolloverTimeMinutes} is allowed"
        )
    if not (settings.enablePersistentTopics or settings.enableNonPersistentTopics):
        raise ConfigError(
            "enablePersistentTopics=false and enableNonPersistentTopics=false: "
            "a broker serves at least one kind of topic; set one of them to true"
        )
    _check_ports(settings)
    check_own_ports(settings)
    check_kinds(settings)
    if settings.authorizationEnabled and not settings.authenticationEnabled:
        raise ConfigError(
            "authorizationEnabled=true and authenticationEnabled=false: nobody would have a role; "
            "set authenticationEnabled=true and authenticationProviders"
        )
    for key in ("journalDirectories", "ledgerDirectories"):
        count = len(getattr(settings, key))
        if count not in (0, settings.bookies):
            raise ConfigError(
                f"{key}: {count} directories for {settings.bookies} bookies; "
                "give one for each bookie, or none"
            )


PORTS = (
    "brokerServicePort",
    "brokerServicePortTls",
    "webServicePort",
    "webServicePortTls",
    "flightServicePort",
    "flightServicePortTls",
)


def _check_ports(settings: Settings) -> None:
    taken: dict[int, str] = {}
    for key in PORTS:
        number = getattr(settings, key)
        if number and number in taken:
            raise ConfigError(
                f"{key}={number}: {taken[number]} has this port already; choose another"
            )
        taken[number] = key
