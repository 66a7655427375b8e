"""The admin API as Spark's side uses it."""

from __future__ import annotations

import os
import socket
import time
from typing import Protocol
from urllib.parse import urlsplit

from pulsark.admin_client.client import FIRST_CONTACT_SECONDS, AdminClient
from pulsark.admin_client.credentials import Credentials
from pulsark.datasource.admin.bulk_publish import BulkPublishCalls
from pulsark.datasource.admin.queries import QueryCalls
from pulsark.datasource.admin.schemas import SchemaCalls
from pulsark.datasource.admin.sealing import SealingCalls
from pulsark.datasource.admin.topics import TopicCalls
from pulsark.datasource.options.errors import DataSourceError, OptionError, UnavailableError

_PAUSE_SECONDS = 0.2


class BrokerOptions(Protocol):
    """The options that say how to reach a broker."""

    @property
    def admin_url(self) -> str:
        """The address of its admin API."""

    @property
    def poll_timeout_s(self) -> float:
        """How long a broker may not answer, in seconds."""

    @property
    def credentials(self) -> Credentials:
        """How to log in."""


def admin_by_environment(url: str, patience_s: float) -> SparkAdmin:
    """For what runs without options: it logs in as the environment says."""
    return SparkAdmin(url, patience_s, credentials=Credentials.from_environment(os.environ))


def admin_of(options: BrokerOptions, *, known: bool = False) -> SparkAdmin:
    """The admin client of a query; ``known`` once its broker has answered the query."""
    return SparkAdmin(
        options.admin_url, options.poll_timeout_s, known=known, credentials=options.credentials
    )


def check_service(url: str, admin_url: str) -> None:
    """Raise ``OptionError`` if nothing listens at a broker's URL.

    A read needs the admin API alone. A wrong ``serviceUrl`` beside it is still a mistake: the admin
    API that is asked in its place may be another broker's.
    """
    deadline = time.monotonic() + FIRST_CONTACT_SECONDS
    while True:
        problem = ""
        for address in url.partition("://")[2].partition("/")[0].split(","):
            parts = urlsplit(f"pulsar://{address}")
            port = parts.port or (6651 if url.startswith("pulsar+ssl:") else 6650)
            try:
                with socket.create_connection((parts.hostname or "", port), FIRST_CONTACT_SECONDS):
                    return
            except (ConnectionRefusedError, socket.gaierror) as error:
                problem = f"{address}: {error.strerror or error}"
            except OSError:
                return  # whether something is there cannot be told from here
        if time.monotonic() + _PAUSE_SECONDS >= deadline:
            raise OptionError(
                f"option 'serviceUrl': nothing listens at {url} ({problem}); the admin API would "
                f"have been {admin_url}"
            )
        time.sleep(_PAUSE_SECONDS)


class SparkAdmin(AdminClient):
    """An admin client with the resources that Spark needs. It raises ``DataSourceError``."""

    refused = DataSourceError
    unavailable = UnavailableError
    advice = "is the broker running, and are the options serviceUrl and adminUrl right?"
    login_advice = "set options authPluginClassName to token and authParams to token:TOKEN"
    trust = "tlsTrustCertsFilePath"

    def __init__(
        self,
        url: str,
        patience_s: float,
        *,
        known: bool = False,
        credentials: Credentials | None = None,
    ) -> None:
        super().__init__(url, patience_s, known=known, credentials=credentials)
        self.topics = TopicCalls(self)
        self.schemas = SchemaCalls(self)
        self.queries = QueryCalls(self)
        self.bulk_publish = BulkPublishCalls(self)
        self.sealing = SealingCalls(self)
