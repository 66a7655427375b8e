"""What holds for a topic: the nearest level that says something."""

from pulsark.config import Settings
from pulsark.dispatch.policies import effective


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
