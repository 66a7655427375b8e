"""What `pulsark cluster` makes of the settings of another cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pulsark.cli import broker, serving
from pulsark.config.sources import LoadedSettings


def test_settings_that_name_stores_have_no_effect_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[LoadedSettings] = []

    def run(settings: LoadedSettings, *_: Any, **__: Any) -> None:
        found.append(settings)

    monkeypatch.setattr(serving, "run", run)
    conf = tmp_path / "broker.conf"
    conf.write_text("metadataStoreUrl=zk:zk1:2181\nconfigurationMetadataStoreUrl=zk:shared:2181\n")
    broker.cluster(["--conf", str(conf)])
    broker.cluster([])
    assert found[0].warnings == tuple(
        f"{key}: `pulsark cluster` has servers of its own, this has no effect ({conf})"
        for key in ("metadataStoreUrl", "configurationMetadataStoreUrl")
    )
    assert found[1].warnings == ()
