"""Views of a namespace, as far as no session is needed."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pulsark.admin_client.client import Answer
from pulsark.datasource.admin.topics import TopicCalls
from pulsark.datasource.catalog import register_topics
from pulsark.datasource.options.errors import NotSealedError, OptionError, TopicNotFoundError
from pulsark.wire.topic_name import TopicName


def test_views_do_not_keep_the_filters_of_their_first_query() -> None:
    with pytest.raises(OptionError, match="option 'pushdown' is for one query of a DataFrame"):
        register_topics(cast(Any, None), pushdown="true")


def test_a_topic_without_a_table_is_not_a_missing_topic() -> None:
    def answering(reason: str) -> TopicCalls:
        answer = Answer(404, json.dumps({"reason": reason}).encode())
        return TopicCalls(cast(Any, SimpleNamespace(url="http://h", request=lambda *_: answer)))

    topic = TopicName.parse("t")
    with pytest.raises(NotSealedError, match="pulsark topics seal persistent://public/default/t"):
        answering("Nothing of the topic is sealed yet: seal it").table(topic)
    with pytest.raises(TopicNotFoundError, match="Topic not found"):
        answering("Topic not found").table(topic)
