"""Warns an operator about open ports and unencrypted credentials."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pulsark.config.addresses import asks_for_login, is_private, plain_ports

if TYPE_CHECKING:
    from pulsark.config.settings import Settings

log = logging.getLogger(__name__)


def warn_of_access(settings: Settings) -> None:
    """Log each way in which strangers could get access."""
    if not is_private(settings.bindAddress) and not asks_for_login(settings):
        log.warning(
            "insecure: anyone who can connect to %s can read, change and delete everything, "
            "because authentication is off; set bindAddress=localhost to serve this machine only",
            settings.bindAddress,
        )
    if not is_private(settings.bindAddress) and is_private(settings.advertisedAddress):
        log.warning(
            "advertisedAddress=%s: clients and brokers on other machines that are sent to this "
            "broker reach themselves; set advertisedAddress to this machine's name",
            settings.advertisedAddress,
        )
    if not is_private(settings.bindAddress) and settings.authenticationEnabled:
        ports = plain_ports(settings)
        if ports:
            log.warning(
                "tokens and passwords cross the network unencrypted on %s: unset it, and set the "
                "TLS port instead",
                " and ".join(ports),
            )
