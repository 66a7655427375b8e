"""SQL over a whole namespace: its topics, and what is known of them, as temporary views."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.datasource.admin.client import admin_of
from pulsark.datasource.options.errors import OptionError
from pulsark.datasource.options.options import Options
from pulsark.datasource.plan.topics import topics_matching
from pulsark.datasource.read.views import VIEWS
from pulsark.wire.topic_name import TopicName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VIEW_PREFIX = "pulsark_"


def register_topics(
    spark: SparkSession, namespace: str = "public/default", **options: str
) -> list[str]:
    """Make ``SELECT * FROM orders`` work: a temporary view for each topic of a namespace.

    Views of the namespace are there as well, as ``pulsark_topics``, ``pulsark_cursors`` and so
    on. Takes the options of a read, ``topicsPattern`` to choose topics. Returns the names; call
    again for topics that are made later. Each topic costs some ten milliseconds.
    """
    chosen = {key: value for key, value in options.items() if key.lower() == "topicspattern"}
    pattern = next(iter(chosen.values()), ".*")
    rest = {key: value for key, value in options.items() if key not in chosen}
    checked = Options.parse(
        {**rest, "topicsPattern": f"persistent://{namespace}/{pattern}"}, streaming=False
    )
    if checked.pushdown:
        raise OptionError(
            "option 'pushdown' is for one query of a DataFrame, and views are for many: the second "
            "one would lack what the first did not want"
        )
    with admin_of(checked) as admin:
        topics = topics_matching(admin, checked.topics_pattern)
    names = _distinct([topic.local for topic in topics])
    for topic in topics:
        frame = spark.read.format("pulsark").options(**rest).load(str(topic))
        frame.createOrReplaceTempView(_quoted(topic.local))
    for view in VIEWS:
        reader = spark.read.format("pulsark").options(
            **{"view": view, "namespace": namespace, **_addresses(rest)}
        )
        reader.load().createOrReplaceTempView(VIEW_PREFIX + view)
    return [*names, *(VIEW_PREFIX + view for view in VIEWS)]


def table(topic: str, **options: str) -> str:
    """The address of a topic's Delta table, for whatever reads Delta: Spark, DuckDB, Polars.

    It has what is sealed; ``pulsark topics seal`` seals what is there. Takes the options
    ``serviceUrl`` and ``adminUrl``. ``NotSealedError`` if nothing is sealed yet.
    """
    checked = Options.parse({**options, "topic": topic}, streaming=False)
    with admin_of(checked) as admin:
        return str(admin.topics.table(TopicName.parse(topic))["uri"])


def _addresses(options: dict[str, str]) -> dict[str, str]:
    """The options that views have too."""
    wanted = ("serviceurl", "service.url", "adminurl", "admin.url", "polltimeoutms")
    return {key: value for key, value in options.items() if key.lower() in wanted}


def _distinct(names: list[str]) -> list[str]:
    """``OptionError`` if SQL could not tell two names from each other."""
    seen = {VIEW_PREFIX + view: VIEW_PREFIX + view for view in VIEWS}
    for name in names:
        other = seen.setdefault(name.lower(), name)
        if other is not name:
            raise OptionError(
                f"topics '{other}' and '{name}' would be the same view in SQL; choose one of them "
                "with topicsPattern"
            )
    return names


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
