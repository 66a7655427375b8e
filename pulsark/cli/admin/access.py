"""How commands reach the broker: with the login that stands before the command."""

from __future__ import annotations

import os
from dataclasses import replace

from pulsark.admin_client.client import TIMEOUT_SECONDS, AdminClient
from pulsark.admin_client.credentials import Credentials
from pulsark.cli.terminal.login import LOGIN, CommandLogin


def credentials() -> Credentials:
    """What stands before the command, or in the environment."""
    login = LOGIN.get(CommandLogin())
    if login.plugin is not None:
        return Credentials.of(login.plugin, login.params, login.trust_path)
    found = Credentials.from_environment(os.environ)
    return replace(found, trust_path=login.trust_path or found.trust_path)


def admin_client(url: str, timeout_s: float | None = TIMEOUT_SECONDS) -> AdminClient:
    """A client of the admin API that logs in; ``timeout_s`` as there."""
    return AdminClient(url, credentials=credentials(), timeout_s=timeout_s)
