"""What Spark finds under ``format("pulsark")``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from pulsark.datasource.columns import check_schema, column_types, spark_schema
from pulsark.datasource.options import MESSAGES, Options
from pulsark.datasource.views import ViewReader, view_ddl

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, DataSourceWriter
    from pyspark.sql.types import StructType


class PulsarkSource(DataSource):
    """Topics as DataFrames. Options and columns: ``docs/spark.md``."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "pulsark"

    def schema(self) -> StructType | str:
        """All columns, or those of the option ``columns``; checks the options, too."""
        options = Options.parse(self.options)
        if options.view != MESSAGES:
            return view_ddl(options.view, options.columns)
        return spark_schema(options.columns, column_types(options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read of the columns in ``schema``."""
        from pulsark.datasource.reader import FilteringReader, PulsarkReader

        options = Options.parse(self.options, streaming=False)
        if options.view != MESSAGES:
            return ViewReader(options, schema)
        check_schema(schema, column_types(options))
        kind = FilteringReader if options.pushdown else PulsarkReader
        return kind(options, tuple(schema.fieldNames()))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch write to the view ``cursors``."""
        from pulsark.datasource.cursor_writer import CursorWriter

        return CursorWriter(Options.parse(self.options), schema, overwrite=overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A streaming read of the columns in ``schema``."""
        from pulsark.datasource.stream_reader import PulsarkStreamReader

        options = Options.parse(self.options, streaming=True)
        check_schema(schema, column_types(options))
        return PulsarkStreamReader(options, tuple(schema.fieldNames()))
