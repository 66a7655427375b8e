"""The description of the API, from which others make clients."""

from __future__ import annotations

import warnings
from collections import Counter

from tests.support.admin_api import AdminApi


def test_every_operation_has_a_name_of_its_own(api: AdminApi) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        paths = api.get("/admin/openapi.json").json["paths"]
    operations = [operation for methods in paths.values() for operation in methods.values()]
    names = Counter(operation["operationId"] for operation in operations)
    assert len(operations) > 200
    assert [name for name, count in names.items() if count > 1] == []
