"""Bookies and their racks over HTTP."""

from __future__ import annotations

import json

import pytest

from pulsark.limits import BOOKIE_TEXT_CHARS_MAX
from pulsark.metadata.bookie_racks import racks_of
from pulsark.metadata.paths import BOOKIES
from pulsark.storage.bookie.known_bookies import BookieState
from tests.support.admin_api import AdminApi

ALL = "/admin/v2/bookies/all"
RACKS = "/admin/v2/bookies/racks-info"
ONE, TWO = "b1:3181", "b2:3181"


class Registry:
    """A cluster's list of bookies."""

    async def states(self) -> dict[str, BookieState]:
        return {ONE: BookieState.AVAILABLE, TWO: BookieState.READ_ONLY, "b3": BookieState.AWAY}


def test_bookies_are_those_of_the_process_or_of_a_registry(api: AdminApi) -> None:
    assert api.get(ALL).json == {"bookies": [{"bookieId": "b1", "state": "available"}]}
    api.broker.known_bookies = Registry()
    states = [(each["bookieId"], each["state"]) for each in api.get(ALL).json["bookies"]]
    assert states == [(ONE, "available"), (TWO, "readonly"), ("b3", "away")]


@pytest.mark.feature("F71")
def test_racks_are_set_shown_and_deleted_in_the_form_of_pulsar(api: AdminApi) -> None:
    assert api.get(RACKS).json == {}
    first, second = ({"rack": f"/rack-{i}", "hostname": f"h{i}"} for i in (1, 2))
    assert api.post(f"{RACKS}/{ONE}?group=default", {**first, "later": 1}).status == 204
    assert api.post(f"{RACKS}/b2%3A3181?group=default", second).status == 204
    assert api.get(RACKS).json == {"default": {ONE: first, TWO: second}}
    assert api.get(f"{RACKS}/{TWO}").json == second
    found = api.run(api.broker.metadata.get(BOOKIES))
    assert json.loads(found.value) == {"default": {ONE: first, TWO: second}}
    assert racks_of(api.run(api.broker.resources.bookie_racks.get())) == {
        ONE: "/rack-1",
        TWO: "/rack-2",
    }
    assert api.delete(f"{RACKS}/{TWO}").status == 204
    assert api.delete(f"{RACKS}/{TWO}").status == api.get(f"{RACKS}/{TWO}").status == 404
    assert api.get(RACKS).json == {"default": {ONE: first}}


def test_a_bookie_is_in_one_group(api: AdminApi) -> None:
    for group in ("default", "other"):
        assert api.post(f"{RACKS}/{ONE}?group={group}", {"rack": "r"}).status == 204
    assert api.get(RACKS).json == {"other": {ONE: {"rack": "r", "hostname": None}}}


@pytest.mark.parametrize(
    ("query", "body", "status"),
    [
        ("", {"rack": "/r"}, 412),
        ("?group=g", None, 412),
        ("?group=g", [], 400),
        ("?group=g", {}, 412),
        ("?group=g", {"rack": "/"}, 412),
        ("?group=g", {"rack": "/region/rack"}, 412),
        ("?group=g", {"rack": 1}, 412),
        ("?group=g", {"rack": "/r", "hostname": 1}, 412),
        ("?group=g", {"rack": "r" * (BOOKIE_TEXT_CHARS_MAX + 1)}, 412),
    ],
)
def test_racks_that_mean_nothing_are_refused(
    api: AdminApi, query: str, body: object, status: int
) -> None:
    assert api.post(f"{RACKS}/{ONE}{query}", body).status == status
    assert api.get(RACKS).json == {}


def test_what_pulsar_has_stored_is_read(api: AdminApi) -> None:
    """Its initialisation writes ``{}``, and a later version may say more of a bookie."""
    metadata = api.broker.metadata
    api.run(metadata.put(BOOKIES, b"{}"))
    assert api.get(RACKS).json == {}
    info = {"rack": "/r/", "hostname": None, "zone": "z"}
    api.run(metadata.put(BOOKIES, json.dumps({"g": {ONE: info}}).encode()))
    assert api.get(f"{RACKS}/{ONE}").json == info
    api.post(f"{RACKS}/{TWO}?group=g", {"rack": "/s"})
    assert api.get(RACKS).json["g"][ONE] == info
    api.run(metadata.put(BOOKIES, b"[1]"))
    assert api.get(RACKS).status == 500
    assert api.post(f"{RACKS}/{TWO}?group=g", {"rack": "/s"}).status == 500
