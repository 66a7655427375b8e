"""Settings that are changed while brokers run."""

from __future__ import annotations

import pytest

from pulsark.config.dynamic import DYNAMIC, VALUE_CHARS_MAX, changed_by, take_over
from pulsark.config.keys import key_index
from pulsark.config.settings import Settings
from pulsark.errors import ConfigError


def test_what_is_dynamic_is_a_setting_that_somebody_heeds() -> None:
    keys = key_index()
    assert all(not keys[name].spec.planned and not keys[name].spec.secret for name in DYNAMIC)


def test_a_change_is_made_in_the_object_that_everybody_has() -> None:
    settings = Settings(maxTenants=3, maxMessageSize=2048)
    wanted = changed_by(settings, {"maxTenants": " 7", "subscriptionTypesEnabled": "Shared"})
    assert (settings.maxTenants, wanted.maxTenants) == (3, 7)
    assert take_over(settings, wanted)
    assert settings == wanted
    assert not take_over(settings, wanted)
    assert take_over(settings, Settings(maxMessageSize=4096))
    assert (settings.maxTenants, settings.maxMessageSize) == (0, 2048)


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("maxMessageSize", "5", "cannot be changed while"),
        ("x" * 1000, "5", "cannot be changed while"),
        ("maxTenants", "-1", "whole number from 0"),
        ("maxTenants", " ", "not nothing"),
        ("allowAutoTopicCreation", "yes", "true or false"),
        ("subscriptionTypesEnabled", "Shared,None", "list of"),
        ("subscriptionTypesEnabled", "Shared," * VALUE_CHARS_MAX, "characters"),
    ],
)
def test_what_cannot_be_is_refused(name: str, text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        changed_by(Settings(), {name: text})
    assert len(str(refused.value)) < 400
