"""What is said of bookies that are not those of their metadata store."""

from __future__ import annotations

from pulsark.storage.bookie.claims import foreign
from pulsark.storage.bookie.identity import Identity


def test_a_bookie_is_named_with_its_place_only_if_that_has_another_name() -> None:
    instance = bytes(16)
    said = foreign("bookie-1", None, Identity("bookie-1", instance, "a"), "b")
    assert said == "bookie bookie-1 belongs to the metadata store a, and this one is b"
    said = foreign("bookie-1", None, Identity("bookie-1-3", instance, "a"), "a")
    assert said is not None
    assert said.startswith("bookie bookie-1-3 at bookie-1 is in service, but the metadata store")
