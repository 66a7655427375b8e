"""Which schemas producers and consumers may bring to a topic.

A producer's schema joins the topic's, if the compatibility strategy allows it and clients may
update the schema at all. A consumer's must read what is there; on an unused topic
it becomes the first one. Without a schema all are welcome, except producers where it is said
that they have to have one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.dispatch.policies.schemas import Schemas, encode_version
from pulsark.metadata.resources import is_system_topic
from pulsark.schemas.definition import IncompatibleSchemaError, SchemaData, SchemaType
from pulsark.schemas.strategies import SchemaCompatibilityStrategy, for_consumers

if TYPE_CHECKING:
    from pulsark.config.settings import Settings
    from pulsark.dispatch.model.interfaces import AnyTopic
    from pulsark.dispatch.policies.policies import TopicPolicies
    from pulsark.wire.topic_name import TopicName


class SchemaAdmission:
    """Applies the policies of topics to the schemas of clients."""

    def __init__(self, schemas: Schemas, settings: Settings) -> None:
        self._schemas = schemas
        self._system_strategy = SchemaCompatibilityStrategy(
            settings.systemTopicSchemaCompatibilityStrategy
        )

    def strategy(self, name: TopicName, policies: TopicPolicies) -> SchemaCompatibilityStrategy:
        """The strategy of a topic."""
        if is_system_topic(str(name)):
            return self._system_strategy
        return policies.schema_compatibility_strategy

    async def of_producer(
        self, name: TopicName, policies: TopicPolicies, schema: SchemaData | None
    ) -> bytes:
        """The version of a producer's schema as messages carry it; empty without a schema."""
        if schema is None:
            if policies.schema_validation_enforced and await self._schemas.exist(name):
                raise IncompatibleSchemaError(
                    "Producers cannot connect or send message without a schema to topics with a "
                    "schema when SchemaValidationEnforced is enabled"
                )
            return b""
        return encode_version(await self._register(name, policies, schema))

    async def of_consumer(self, topic: AnyTopic, schema: SchemaData | None) -> None:
        """Raise ``IncompatibleSchemaError`` if a consumer cannot read the topic with its schema.

        One that takes whatever comes (AUTO_CONSUME) has none.
        """
        if schema is None or schema.type is SchemaType.AUTO_CONSUME:
            return
        if await self._schemas.exist(topic.name):
            strategy = for_consumers(self.strategy(topic.name, topic.policies))
            await self._schemas.check(topic.name, schema, strategy)
        elif not _is_in_use(topic):
            await self._register(topic.name, topic.policies, schema)
        elif self.strategy(topic.name, topic.policies) is not _ANYTHING_GOES:
            raise IncompatibleSchemaError(
                "Failed to add schema to an active topic with empty(BYTES) schema: "
                f"new schema type {schema.type.name}"
            )

    async def _register(self, name: TopicName, policies: TopicPolicies, schema: SchemaData) -> int:
        return await self._schemas.register(
            name,
            schema,
            self.strategy(name, policies),
            may_add=is_system_topic(str(name)) or policies.is_allow_auto_update_schema,
        )


_ANYTHING_GOES = SchemaCompatibilityStrategy.ALWAYS_COMPATIBLE


def _is_in_use(topic: AnyTopic) -> bool:
    """Whether the topic is in use without a schema: then its messages are just bytes."""
    if topic.producers or topic.total_size:
        return True
    if not topic.name.is_persistent and topic.entries_in:
        return True
    return any(
        consumer.schema_type is not SchemaType.AUTO_CONSUME
        for subscription in topic.subscriptions.values()
        for consumer in subscription.type.consumers
    )
