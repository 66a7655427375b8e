"""What a job is, and what it is given when it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar
from urllib.parse import urlsplit

from pulsark.datasource.admin.client import SparkAdmin, admin_by_environment
from pulsark.errors import PulsarkError
from pulsark.jobs.progress import ProgressLine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Wanted = TypeVar("Wanted")

PATIENCE_SECONDS = 60.0
"""A broker that restarts meanwhile is waited for."""


class UsageError(PulsarkError):
    """A flag or a key of the job file is wrong; names it and the cure. Exit code 2."""


class JobError(PulsarkError):
    """The job cannot be done, or not to its end. Exit code 1."""


@dataclass(frozen=True, slots=True)
class Help:
    """What help and errors say of a parameter."""

    meaning: str
    variable: str = ""
    """Environment variable that has its default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AtBroker:
    """Parameters of every job: where the broker is."""

    service_url: Annotated[
        str, Help("the broker, pulsar://HOST:PORT", variable="PULSARK_SERVICE_URL")
    ] = "pulsar://localhost:6650"
    admin_url: Annotated[
        str | None,
        Help(
            "its admin API, http://HOST:PORT; port 8080 of the service URL's host if left out",
            variable="PULSARK_ADMIN_URL",
        ),
    ] = None

    @property
    def admin(self) -> str:
        """The URL of the admin API; ``UsageError`` if there cannot be one."""
        url = self.admin_url
        if url is None:
            url = f"http://{urlsplit(self.service_url).hostname or 'localhost'}:8080"
        if not urlsplit(url).hostname or urlsplit(url).scheme not in ("http", "https"):
            raise UsageError(f"--admin-url {url}: write http://HOST:PORT")
        return url


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated(AtBroker):
    """Parameters of a job that can also run as a service."""

    every: Annotated[
        float, Help("seconds between the end of a run and the next one; 0: run once")
    ] = 0.0


@dataclass
class Context:
    """What a running job has at hand."""

    name: str
    progress: ProgressLine = field(default_factory=lambda: ProgressLine(sys.stderr))
    given_spark: SparkSession | None = None
    """An existing session, which is not stopped."""

    @cached_property
    def spark(self) -> SparkSession:
        """The Spark session, started when it is first asked for."""
        return self.given_spark or start_spark(self.name)

    def admin(self, wanted: AtBroker) -> SparkAdmin:
        """The broker's admin API."""
        return admin_by_environment(wanted.admin, PATIENCE_SECONDS)

    def close(self) -> None:
        """Stop what was started."""
        self.progress.close()
        if self.given_spark is None and "spark" in self.__dict__:
            self.spark.stop()


@dataclass(frozen=True)
class Job(Generic[Wanted]):
    """One job. ``parameters`` is a frozen dataclass: each field a flag, ``Annotated`` with one."""

    name: str
    summary: str
    """One line."""
    parameters: type[Wanted]
    run: Callable[[Wanted, Context], Mapping[str, Any]]
    """Run once and return the summary. Another run does the remaining work."""


def start_spark(name: str) -> SparkSession:
    """A session: that of spark-submit with the settings it was given, else a tuned local one."""
    from pulsark.datasource.session import session

    if "PYSPARK_GATEWAY_PORT" in os.environ:
        from pyspark.sql import SparkSession

        from pulsark.datasource.source import PulsarkSource

        spark: SparkSession = SparkSession.builder.getOrCreate()
        spark.dataSource.register(PulsarkSource)
    else:
        spark = session(name)
    spark.sparkContext.setLogLevel("ERROR")
    return spark
