"""Sealed ledgers and the files that have them: what jobs seal, copy and attach."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from pulsark.admin_client.paths import topic_path
from pulsark.datasource.options.errors import ConflictError
from pulsark.wire.topic_name import TopicName

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pulsark.admin_client.client import AdminClient


@dataclass(frozen=True, slots=True)
class SealingCalls:
    """Plans of sealing and their results; see ``admin.spark.sealing``."""

    _client: AdminClient

    def plan(
        self, topics: Sequence[str], runner: str, *, everything: bool, range_bytes: int
    ) -> dict[str, Any]:
        """What is due to be sealed."""
        body = {
            "topics": list(topics),
            "runner": runner,
            "everything": everything,
            "rangeBytes": range_bytes,
        }
        plan: dict[str, Any] = self._client.call(
            "POST", "/sealing/plan", body, what="the plan of sealing"
        )
        return plan

    def attach(
        self, topic: str, table_id: str, files: Sequence[dict[str, Any]], value: Any = None
    ) -> int:
        """Make files part of a topic; the number of the attach. ``ConflictError``: plan anew.

        ``value`` is the type that their values have, from the plan.
        """
        body = {"tableId": table_id, "files": list(files), "value": value}
        path = f"{topic_path(TopicName.parse(topic))}/attach"
        answer = self._client.request("POST", path, body)
        if answer.status == 409:
            raise ConflictError(answer.reason)
        return int(self._client.value_of(answer, f"files of {topic}")["attach"])

    def copies(self, topics: Sequence[str], after: str) -> dict[str, Any]:
        """A page of which storage roots have which sealed ledgers."""
        given = [("topic", name) for name in topics] + [("after", after)]
        page: dict[str, Any] = self._client.call(
            "GET", f"/sealing/copies?{urlencode(given)}", what="the copies of sealed ledgers"
        )
        return page

    def recovered(self, root: str) -> int:
        """Say that a storage root has all its files again; the number of its tables."""
        tables, after = 0, ""
        while True:
            body = {"root": root, "after": after}
            what = f"storage root {root}"
            answer = self._client.call("POST", "/sealing/recovered", body, what=what)
            tables += int(answer["tables"])
            after = answer.get("next", "")
            if not after:
                return tables

    def place(self, topic: str, directories: Sequence[str]) -> None:
        """Say that a table is in other directories from now on, which have all its files."""
        path = f"{topic_path(TopicName.parse(topic))}/table/directories"
        body = {"directories": list(directories)}
        self._client.call("POST", path, body, what=f"the table of {topic}")
