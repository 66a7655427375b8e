"""What an operator has to know of who can come in."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pulsark.config.addresses import asks_for_login, is_private, plain_ports

if TYPE_CHECKING:
    from pulsark.config.settings import Settings

log = logging.getLogger(__name__)


def warn_of_access(settings: Settings) -> None:
    """Say in the log what strangers could do."""
    if not is_private(settings.bindAddress) and not asks_for_login(settings):
        log.warning(
            "insecure: everyone who reaches %s can read, change and delete everything, because "
            "authentication is off; bindAddress=localhost is for this machine only. Clients "
            "are told to connect to %s: set advertisedAddress to the name by which they find "
            "this machine",
            settings.bindAddress,
            settings.advertisedAddress,
        )
    if not is_private(settings.bindAddress) and settings.authenticationEnabled:
        ports = plain_ports(settings)
        if ports:
            log.warning(
                "tokens and passwords cross the network in the clear on %s; leave it empty and "
                "set the one for TLS",
                " and ".join(ports),
            )
