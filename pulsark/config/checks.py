"""What no single setting can know: which values fit together."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pulsark.config.several_brokers import check_kinds, check_own_ports
from pulsark.config.store_urls import check_store_urls
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
    check_store_urls(settings)
    _check_ports(settings)
    check_own_ports(settings)
    check_kinds(settings)
    if settings.authorizationEnabled and not settings.authenticationEnabled:
        raise ConfigError(
            "authorizationEnabled=true and authenticationEnabled=false: nobody would have a role; "
            "set authenticationEnabled=true and authenticationProviders"
        )
    _check_roots(settings)
    for key in ("journalDirectories", "ledgerDirectories"):
        count = len(getattr(settings, key))
        if count not in (0, settings.bookies):
            raise ConfigError(
                f"{key}: {count} directories for {settings.bookies} bookies; "
                "give one for each bookie, or none"
            )


_object_store = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9_.=-]+)*/?")


def _check_roots(settings: Settings) -> None:
    for root in settings.tableRoots:
        if "://" in root and _object_store.fullmatch(root) is None:
            raise ConfigError(
                f"tableRoots={root}: give a directory, or s3://BUCKET/PREFIX with 3 to 63 small "
                "letters, digits and . - in BUCKET, letters, digits and _ . = - in PREFIX, "
                "and no credentials"
            )
    roots = [root.rstrip("/") for root in settings.tableRoots]
    if len(set(roots)) < len(roots):
        raise ConfigError("tableRoots: a root is named twice; it would count as two copies")
    endpoint = settings.objectStoreEndpoint
    if endpoint and not endpoint.startswith(("http://", "https://")):
        raise ConfigError(f"objectStoreEndpoint={endpoint}: give http://HOST:PORT or https://HOST")
    if "@" in endpoint:
        raise ConfigError(
            "objectStoreEndpoint: a URL is no place for credentials; set objectStoreCredentialsFile"
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
