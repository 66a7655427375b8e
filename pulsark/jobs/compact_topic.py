"""Keep only the latest message of each key, for readers of the compacted topic.

The broker compacts topics of up to a million keys by itself; this job has no limit: the broker
reads the topic once more for each further million. The result is the same, and is served in the
same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pulsark.errors import PulsarkError
from pulsark.jobs.broker_work import work
from pulsark.jobs.job import Context, Help, Job, JobError, Repeated, UsageError
from pulsark.wire.topic_name import TopicName


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters(Repeated):
    """The parameters of ``compact_topic``."""

    topic: Annotated[tuple[str, ...], Help("a topic")] = ()


def run(wanted: Parameters, context: Context) -> Mapping[str, Any]:
    """Compact the topics; ``JobError`` at the end if some could not be."""
    if not wanted.topic:
        raise UsageError("--topic is missing: the topic to compact")
    admin = context.admin(wanted)
    topics = sorted({str(TopicName.parse(topic).base) for topic in wanted.topic})
    partitions = removed = 0
    failed: dict[str, str] = {}
    for number, topic in enumerate(topics):
        context.progress.show("topics", number, len(topics))
        try:
            done = work(admin, TopicName.parse(topic), "compact")
        except PulsarkError as error:
            failed[topic] = str(error).removeprefix("pulsark: ")
            continue
        partitions += done["partitions"]
        removed += done["removed"]
    admin.close()
    if failed:
        topic, reason = next(iter(failed.items()))
        raise JobError(f"{len(failed)} of {len(topics)} topics failed, {topic}: {reason}")
    return {"topics": len(topics), "partitions": partitions, "removed": removed}


JOB = Job(
    "compact_topic", "Keep the latest message of each key, of any number of keys.", Parameters, run
)
