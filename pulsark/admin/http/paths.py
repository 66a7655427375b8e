"""Shapes of path segments that routes share. Importing this makes them known to the router."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.convertors import Convertor, register_url_convertor


class _Shape(Convertor[str]):
    """A segment, or several, that match an expression."""

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


def matching(expression: str) -> Convertor[str]:
    """A convertor of what matches."""
    shape: type[_Shape] = type("_Matching", (_Shape,), {"regex": expression})
    return shape()


def one_of(words: Iterable[str]) -> Convertor[str]:
    """A convertor of some words and nothing else."""
    return matching("|".join(words))


register_url_convertor("domain", one_of(("persistent", "non-persistent")))
register_url_convertor("bundle_kind", one_of(("LARGEST", "HOT")))
register_url_convertor("bundle", matching("0x[0-9a-fA-F]{8}_0x[0-9a-fA-F]{8}"))

TOPICS = "/admin/v2/{domain:domain}/{tenant}/{namespace}"
"""The topics of a namespace; a topic's own name is the next segment."""

BUNDLE = "/{bundle:bundle}"
LOOKUP = "/lookup/v2/topic/{domain:domain}/{tenant}/{namespace}/{topic}"
OLD_LOOKUP = "/lookup/v2/destination/{domain:domain}/{tenant}/{cluster}/{namespace}/{topic}"
