"""What jobs ask a broker to do with tables: the requests, good and bad."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pulsark.admin.spark.background_work import KEPT, Works
from pulsark.errors import StorageError
from tests.support.admin_api import NAMESPACE, AdminApi

TOPIC = f"{NAMESPACE}/t"


def worked(api: AdminApi, ident: str, body: Any) -> Any:
    """The end of a work."""
    answer = api.put(f"{TOPIC}/table/work/{ident}", body)
    while answer.json["status"] == "RUNNING":
        answer = api.get(f"{TOPIC}/table/work/{ident}")
    assert answer.status == 200
    return answer.json


def test_work_is_done_once_under_one_id(api: AdminApi) -> None:
    api.put(TOPIC)
    found = worked(api, "one", {"do": "compact"})
    assert found == {"status": "SUCCESS", "result": {"partitions": 1, "removed": 0}, "error": ""}
    assert worked(api, "one", {"do": "compact"}) == found
    assert api.get(f"{TOPIC}/table/work/two").status == 404


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"do": "dance"}, 400),
        ({"do": "erase"}, 400),
        ({"do": "erase", "ids": {"1": 2}}, 400),
        ({"do": "erase", "ids": [[1]]}, 400),
        ({"do": "erase", "ids": [[1, [[0, 5]]]]}, 400),
        ({"do": "erase", "ids": [["one", [[0, None]]]]}, 400),
        ({"do": "erase", "ids": [[1, [[0, [True]]]]]}, 400),
        ({"do": "erase", "ids": [[-1, [[0, None]]]]}, 412),
        ({"do": "erase", "ids": [[1, [[0, [-2]]]]]}, 412),
        ({"do": "repair"}, 404),
        ({"do": "repair", "giveUp": 1}, 400),
        ({"do": "finishErasure", "vacuumHours": "soon"}, 400),
        ({"do": "finishErasure", "vacuumHours": True}, 400),
        ({"do": "finishErasure", "vacuumHours": -1}, 400),
    ],
)
def test_bad_requests_are_named(api: AdminApi, body: Any, status: int) -> None:
    answer = api.put(f"{TOPIC}/table/work/x", body)
    assert answer.status == status
    assert answer.reason


def test_works_of_long_ago_are_forgotten_and_bugs_end_them() -> None:
    async def main() -> None:
        works = Works()

        async def bug() -> None:
            raise ZeroDivisionError("by zero")

        async def failing() -> None:
            raise StorageError("no room")

        async def fine() -> int:
            return 7

        for ident, do in (("bug", bug), ("failing", failing), ("fine", fine)):
            works.begin(ident, do)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        shown = [works.begin(i, bug).shown() for i in ("bug", "failing", "fine")]
        assert [(s["status"], s["error"]) for s in shown] == [
            ("ERROR", "ZeroDivisionError('by zero')"),
            ("ERROR", "no room"),
            ("SUCCESS", ""),
        ]
        for number in range(2 * KEPT):
            works.begin(str(number), fine)
            await asyncio.sleep(0)
        assert works.get("bug") is None
        assert works.get(str(2 * KEPT - 1)) is not None

    asyncio.run(main())
