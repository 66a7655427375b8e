"""Long work that a broker does for a job: started by one request, then polled."""

from __future__ import annotations

import threading
import uuid
from typing import Any

from pulsark.datasource.plan.admin_client import AdminClient
from pulsark.jobs.job import JobError
from pulsark.wire.topic_name import TopicName

POLL_SECONDS = 0.1


def work(admin: AdminClient, topic: TopicName, do: str, **given: Any) -> dict[str, Any]:
    """Let the broker do something that may take long; returns its result. ``JobError``."""
    path = f"{admin.path_of(topic)}/table/work/{uuid.uuid4().hex}"
    state = admin.call("PUT", path, {"do": do, **given}, what=f"{do} of {topic}")
    while state["status"] == "RUNNING":
        threading.Event().wait(POLL_SECONDS)
        state = admin.call("GET", path, what=f"{do} of {topic}")
    if state["status"] != "SUCCESS":
        raise JobError(f"{do} of {topic}: {state['error']}")
    result: dict[str, Any] = state["result"]
    return result
