"""Apply retention now, to unused topics as well.

It trims ledgers beyond ``retention`` and ``tableRetention``, removes their rows from the tables by
commits that touch no file, and deletes files that left a table long enough ago. The broker does the
work, because only it commits; this job walks over the topics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pulsark.admin_client.paths import topic_path
from pulsark.errors import PulsarkError
from pulsark.jobs.job import Context, Help, Job, JobError, Repeated, UsageError
from pulsark.wire.topic_name import TopicName, parse_namespace

_COUNTS = ("ledgers", "rows", "deletedFiles", "keptFiles")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters(Repeated):
    """The parameters of ``apply_retention``."""

    topic: Annotated[tuple[str, ...], Help("a topic")] = ()
    namespace: Annotated[tuple[str, ...], Help("tenant/namespace: all its topics")] = ()
    dry_run: Annotated[bool, Help("only count what would go")] = False


def run(wanted: Parameters, context: Context) -> Mapping[str, Any]:
    """Go through the topics; ``JobError`` at the end if some could not be done."""
    if not (wanted.topic or wanted.namespace):
        raise UsageError("say which: --topic or --namespace")
    admin = context.admin(wanted)
    topics = {str(TopicName.parse(topic).base) for topic in wanted.topic}
    for namespace in wanted.namespace:
        topics.update(admin.topics.names("/".join(parse_namespace(namespace))))
    counts = dict.fromkeys(_COUNTS, 0)
    failed: dict[str, str] = {}
    for number, topic in enumerate(sorted(topics)):
        context.progress.show("topics", number, len(topics))
        path = f"{topic_path(TopicName.parse(topic))}/table/retention"
        query = "?dryRun=true" if wanted.dry_run else ""
        try:
            found = admin.call("POST", path + query, what=f"retention of {topic}")
        except PulsarkError as error:
            failed[topic] = str(error).removeprefix("pulsark: ")
            continue
        counts = {name: counts[name] + found[name] for name in _COUNTS}
    admin.close()
    if failed:
        topic, reason = next(iter(failed.items()))
        raise JobError(f"{len(failed)} of {len(topics)} topics failed, {topic}: {reason}")
    return {"topics": len(topics), "dryRun": wanted.dry_run, **counts}


JOB = Job(
    "apply_retention",
    "Trim topics and their tables as their retention says; delete old files.",
    Parameters,
    run,
)
