"""What Spark finds under ``format("pulsark")``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import datasource as spark_api
from pyspark.sql.datasource import DataSource

from pulsark.datasource.admin.client import admin_of, check_service
from pulsark.datasource.options.errors import OptionError, with_short_tracebacks
from pulsark.datasource.options.options import MESSAGES, Options
from pulsark.datasource.plan.topics import topic_names, topics_matching
from pulsark.datasource.read.layout import ColumnLayout, layout_of
from pulsark.datasource.read.views import ViewReader, view_ddl

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from pulsark.schemas.definition import SchemaData

if not hasattr(spark_api, "Filter"):
    raise ImportError("it needs Spark 4.1 or later: pip install 'pulsark[spark]'")

SCHEMAS_OF_TOPICS_MAX = 100
"""More topics are not compared for ``valueFormat`` auto."""


@with_short_tracebacks
class PulsarkSource(DataSource):
    """Topics as DataFrames. Options and columns: ``docs/spark.md``.

    Spark pickles the source after it has asked for the schema, and each query of the DataFrame
    begins with a copy. So the columns stay those of ``load()``, although the topic's schema grows.
    """

    _loaded: ColumnLayout | None = None

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "pulsark"

    def schema(self) -> StructType | str:
        """All columns, or those of the option ``columns``; checks the options, too."""
        options = Options.parse(self.options)
        if options.view != MESSAGES:
            return view_ddl(options.view, options.columns)
        self._loaded = layout_of(options, lambda: _schemas(options))
        return self._loaded.schema(options.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read of the columns in ``schema``."""
        from pulsark.datasource.read.reader import FilteringReader, PulsarkReader

        options = _checked(Options.parse(self.options, streaming=False))
        if options.view != MESSAGES:
            return ViewReader(options, schema)
        layout = self._layout(options, schema)
        kind = FilteringReader if options.pushdown else PulsarkReader
        return kind(options, layout, tuple(schema.fieldNames()))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A streaming read of the columns in ``schema``."""
        from pulsark.datasource.read.stream_api import ADMISSION_CONTROL
        from pulsark.datasource.read.stream_reader import PulsarkStreamReader
        from pulsark.datasource.read.unlimited_stream import UnlimitedStreamReader

        options = _checked(Options.parse(self.options, streaming=True))
        layout = self._layout(options, schema)
        kind = PulsarkStreamReader if ADMISSION_CONTROL else UnlimitedStreamReader
        return kind(options, layout, tuple(schema.fieldNames()))

    def _layout(self, options: Options, schema: StructType) -> ColumnLayout:
        """Return the columns as they were loaded, or those of now if the user gave a schema."""
        if self._loaded is None:
            found = layout_of(options, lambda: _schemas(options))
            found.check(schema)
            return found
        self._loaded.check(schema)
        if options.fail_on_new_columns:
            for topic, versions in _schemas(options).items():
                self._loaded.check_current(schema.fieldNames(), topic, versions)
        return self._loaded

    # Spark passes these parameters by name.

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch write of messages, or to the view ``cursors``; appends only."""
        if self.options.get("view", MESSAGES).strip().lower() != MESSAGES:
            from pulsark.datasource.write.cursor_writer import CursorWriter

            return CursorWriter(Options.parse(self.options), schema, overwrite=overwrite)
        from pulsark.datasource.write.sink import PulsarkWriter, sink_for

        return PulsarkWriter(sink_for(self.options, schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """A streaming write; appends only."""
        from pulsark.datasource.write.sink import PulsarkStreamWriter, sink_for

        return PulsarkStreamWriter(sink_for(self.options, schema, overwrite))


def _checked(options: Options) -> Options:
    if options.names_service_url:
        check_service(options.service_url, options.admin_url)
    return options


def _schemas(options: Options) -> Mapping[str, Mapping[bytes, SchemaData]]:
    with admin_of(options) as admin:
        if options.topics_pattern is not None:
            names = topics_matching(admin, options.topics_pattern)
        else:
            names = topic_names(options.topics)
        if len(names) > SCHEMAS_OF_TOPICS_MAX:
            raise OptionError(
                f"option 'valueFormat': auto is for at most {SCHEMAS_OF_TOPICS_MAX} topics, and "
                f"these are {len(names)}; read them with valueFormat raw"
            )
        return {str(name): admin.schemas.versions(name) for name in names}
