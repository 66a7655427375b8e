"""One role claimed all topics that Spark queries may follow.

Did: as a role that may consume one namespace, claimed 200,000 topics that do not exist.
Saw: Spark queries of other tenants got 429.
Expected: topics that do not exist are not claimed, and others are not refused.
"""

from __future__ import annotations

from tests.strangers.conftest import Locked

QUERIES = "/admin/v2/spark-queries"


def test_topics_that_do_not_exist_take_no_place(locked: Locked) -> None:
    assert locked.http("PUT", "/admin/v2/persistent/b/ns/read", "b-admin")[0] == 204
    for number in range(4):
        names = [f"a/ns/{number}-{name:x}" for name in range(2000)]
        body = {"client": "a", "subscription": None, "topics": names}
        assert locked.http("PUT", f"{QUERIES}/a{number}", "a-consume", body)[0] == 204
    claimed = {"client": "b", "subscription": None, "topics": ["b/ns/read"]}
    assert locked.http("PUT", f"{QUERIES}/b", "b-both", claimed)[0] == 204
    status, listed = locked.http("GET", QUERIES, "a-consume")
    assert (status, {len(query["topics"]) for query in listed}) == (200, {0})
    for query, role in (("a3", "a-consume"), ("b", "b-both")):
        assert locked.http("DELETE", f"{QUERIES}/{query}", role)[0] in (204, 404)
