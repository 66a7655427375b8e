"""Where routes are served: ``places.tsv`` says it, and so does the code."""

from __future__ import annotations

from pathlib import Path

from tests.support.admin_api import AdminApi
from tests.support.routes import routes_of

PLACES = Path(__file__).parent / "places.tsv"


def test_every_route_is_served_where_the_list_says(api: AdminApi) -> None:
    """A new route fails here until it has a line."""
    found: dict[str, set[str]] = {}
    for route in routes_of(api.app):
        found.setdefault(route.place, set()).add(f"{route.method} {route.path}")
    listed: dict[str, set[str]] = {}
    for line in PLACES.read_text().splitlines():
        if not line.startswith("#"):
            methods, _, rest = line.partition(" /")
            path, _, place = f"/{rest}".partition("\t")
            listed.setdefault(place, set()).update(f"{m} {path}" for m in methods.split(" "))
    assert found == listed


def test_what_is_about_one_topic_is_not_served_anywhere_without_a_reason() -> None:
    """Of these the metadata store knows everything."""
    anywhere = {
        line.partition("\t")[0].partition("{topic}")[2]
        for line in PLACES.read_text().splitlines()
        if "{topic}" in line and line.endswith("\tanywhere")
    }
    assert anywhere == {
        "",
        "/bundle",
        "/compatibility",
        "/metadata",
        "/producerSchema",
        "/schema",
        "/schema/{version}",
        "/schemas",
        "/version",
    }
