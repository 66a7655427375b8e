"""The admin API as Spark's side uses it."""

from __future__ import annotations

from pulsark.admin_client.client import AdminClient
from pulsark.datasource.admin.bulk_publish import BulkPublish
from pulsark.datasource.admin.queries import Queries
from pulsark.datasource.admin.schemas import Schemas
from pulsark.datasource.admin.sealing import Sealing
from pulsark.datasource.admin.topics import Topics
from pulsark.datasource.options.errors import DataSourceError, UnavailableError


class SparkAdmin(AdminClient):
    """An admin client with the resources that Spark needs. It raises ``DataSourceError``."""

    refused = DataSourceError
    unavailable = UnavailableError
    advice = "is the broker running, and are the options serviceUrl and adminUrl right?"

    def __init__(self, url: str, patience_s: float, *, known: bool = False) -> None:
        super().__init__(url, patience_s, known=known)
        self.topics = Topics(self)
        self.schemas = Schemas(self)
        self.queries = Queries(self)
        self.bulk_publish = BulkPublish(self)
        self.sealing = Sealing(self)
