"""A tenant's administrator spent the rate of another tenant.

Did: as the administrator of tenant ``b``, put ``b/ns`` into the resource group that the operator
had made for tenant ``a``; then took a namespace out of the group that limits it.
Saw: both worked, and the producers of ``a`` fell from 358 to 0.1 messages a second.
Expected: only super users say who is in a group.
"""

from __future__ import annotations

from tests.strangers.conftest import Locked


def test_only_the_operator_says_who_is_in_a_group(locked: Locked) -> None:
    group, own = "/admin/v2/resourcegroups/gold", "/admin/v2/namespaces/b/ns/resourcegroup"
    assert locked.http("PUT", group, body={"publishRateInMsgs": 1000})[0] == 204
    assert locked.http("POST", "/admin/v2/namespaces/a/ns/resourcegroup/gold")[0] == 204
    for method, path, body in (
        ("POST", f"{own}/gold", None),
        ("POST", own, "gold"),
        ("PUT", "/admin/v2/namespaces/b/new", {"resource_group_name": "gold"}),
    ):
        status, answer = locked.http(method, path, "b-admin", body)
        assert (status, answer["reason"]) == (401, "This operation requires super-user access")
    assert locked.http("GET", own)[1] == ""
    leave = "/admin/v2/namespaces/a/ns/resourcegroup"
    assert locked.http("DELETE", leave, "a-admin")[0] == 401
    assert locked.http("GET", leave)[1] == "gold"
    assert locked.http("DELETE", leave)[0] == 204
