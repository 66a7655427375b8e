"""Shapes of path segments that routes share. Importing this makes them known to the router."""

from __future__ import annotations

from starlette.convertors import Convertor, register_url_convertor


class _Domain(Convertor[str]):
    """``persistent`` or ``non-persistent``."""

    regex = "persistent|non-persistent"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


class _Bundle(_Domain):
    """A range of hashes."""

    regex = "0x[0-9a-fA-F]{8}_0x[0-9a-fA-F]{8}"


register_url_convertor("domain", _Domain())
register_url_convertor("bundle", _Bundle())

TOPICS = "/admin/v2/{domain:domain}/{tenant}/{namespace}"
"""The topics of a namespace; a topic's own name is the next segment."""

BUNDLE = "/{bundle:bundle}"
LOOKUP = "/lookup/v2/topic/{domain:domain}/{tenant}/{namespace}/{topic}"
OLD_LOOKUP = "/lookup/v2/destination/{domain:domain}/{tenant}/{cluster}/{namespace}/{topic}"
