"""What holds for a topic: the nearest level that says something."""

from typing import Any

import pytest

from pulsark.config.keys import key_index
from pulsark.config.settings import Settings
from pulsark.dispatch.policies.policies import effective
from pulsark.schemas.strategies import SchemaCompatibilityStrategy


def test_a_broker_setting_holds_where_nothing_was_set() -> None:
    found = effective(Settings(maxUnackedMessagesPerConsumer=7), {}, {})
    assert found.max_unacked_messages_per_consumer == 7
    assert found.subscription_types == {"Exclusive", "Shared", "Failover", "Key_Shared"}
    assert found.is_allow_auto_update_schema


def test_the_nearest_level_wins_also_with_zero_and_false() -> None:
    settings = Settings(maxUnackedMessagesPerConsumer=7, brokerDeduplicationEnabled=True)
    namespace = {"max_unacked_messages_per_consumer": 5, "deduplicationEnabled": False}
    found = effective(settings, namespace, {"max_unacked_messages_per_consumer": 0})
    assert found.max_unacked_messages_per_consumer == 0
    assert not found.deduplication


def test_null_and_an_empty_list_of_types_mean_that_nothing_was_set() -> None:
    found = effective(
        Settings(subscriptionTypesEnabled=("Shared",)),
        {"subscription_types_enabled": [], "deduplicationEnabled": None},
        {},
    )
    assert found.subscription_types == {"Shared"}
    assert not found.deduplication


@pytest.mark.parametrize(
    ("setting", "namespace", "topic", "strategy"),
    [
        ("BACKWARD", {}, {}, "BACKWARD"),
        ("UNDEFINED", {}, {}, "FULL"),
        ("BACKWARD", {"schema_compatibility_strategy": "FORWARD"}, {}, "FORWARD"),
        (
            "BACKWARD",
            {"schema_compatibility_strategy": "FORWARD"},
            {"schema_compatibility_strategy": "ALWAYS_COMPATIBLE"},
            "ALWAYS_COMPATIBLE",
        ),
    ],
)
def test_the_schema_strategy_of_the_nearest_level_that_has_one(
    setting: str, namespace: dict[str, Any], topic: dict[str, Any], strategy: str
) -> None:
    found = effective(Settings(schemaCompatibilityStrategy=setting), namespace, topic)
    assert found.schema_compatibility_strategy.name == strategy


def test_settings_know_each_schema_strategy() -> None:
    names = {strategy.name for strategy in SchemaCompatibilityStrategy}
    for key in ("schemaCompatibilityStrategy", "systemTopicSchemaCompatibilityStrategy"):
        assert set(key_index()[key].spec.choices) == names


def test_schemas_are_enforced_if_the_broker_or_the_namespace_says_so() -> None:
    enforced = {"schema_validation_enforced": True}
    assert effective(Settings(), enforced, {}).schema_validation_enforced
    everywhere = Settings(isSchemaValidationEnforced=True)
    assert effective(
        everywhere, {"schema_validation_enforced": False}, {}
    ).schema_validation_enforced
    assert not effective(Settings(), {}, {}).schema_validation_enforced
