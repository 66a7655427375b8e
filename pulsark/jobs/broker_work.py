"""Long work that a broker does for a job: started by one request, then polled."""

from __future__ import annotations

import threading
import uuid
from typing import Any

from pulsark.admin_client.paths import topic_path
from pulsark.datasource.admin.client import SparkAdmin
from pulsark.jobs.job import JobError
from pulsark.wire.topic_name import TopicName

POLL_SECONDS = 0.1


def work(admin: SparkAdmin, topic: TopicName, do: str, **given: Any) -> dict[str, Any]:
    """Let the broker do something that may take long; returns its result. ``JobError``."""
    path = f"{topic_path(topic)}/table/work/{uuid.uuid4().hex}"
    state = admin.call("PUT", path, {"do": do, **given}, what=f"{do} of {topic}")
    while state["status"] == "RUNNING":
        threading.Event().wait(POLL_SECONDS)
        state = admin.call("GET", path, what=f"{do} of {topic}")
    if state["status"] != "SUCCESS":
        raise JobError(f"{do} of {topic}: {state['error']}")
    result: dict[str, Any] = state["result"]
    return result
