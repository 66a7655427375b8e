"""Help without a frame, for commands whose options have long names."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


class PlainHelp(TyperCommand):
    """A frame of 80 columns cuts such names off, and they are what a reader looks for."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self.rich_markup_mode = None
        super().format_help(ctx, formatter)
