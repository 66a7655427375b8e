"""Where clients find a broker."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit


class ServiceUrls(NamedTuple):
    """The ports of one broker as URLs with its advertised name; "" for those it does not open."""

    broker: str = ""
    web: str = ""
    flight: str = ""
    broker_tls: str = ""
    web_tls: str = ""
    flight_tls: str = ""

    @property
    def broker_id(self) -> str:
        """``host:port`` of the admin API: what brokers are called in Pulsar."""
        return urlsplit(self.web or self.web_tls or self.broker or self.broker_tls).netloc

    def of_cluster(self) -> dict[str, str]:
        """What Pulsar's cluster data says of them, without ports that are not open."""
        said = {
            "serviceUrl": self.web,
            "serviceUrlTls": self.web_tls,
            "brokerServiceUrl": self.broker,
            "brokerServiceUrlTls": self.broker_tls,
        }
        return {key: url for key, url in said.items() if url}

    def flight_for(self, scheme: str) -> str:
        """The Flight port for a client that came by ``http`` or ``https``."""
        if scheme == "https":
            return self.flight_tls or self.flight
        return self.flight or self.flight_tls

    def as_json(self) -> dict[str, str]:
        """By the names that ``standalone.json`` has, without those that are not open."""
        names = (
            "brokerServiceUrl",
            "webServiceUrl",
            "flightUrl",
            "brokerServiceUrlTls",
            "webServiceUrlTls",
            "flightUrlTls",
        )
        return {name: url for name, url in zip(names, self, strict=True) if url}
