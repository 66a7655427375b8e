"""A truncated topic's rows were in its table for ten minutes more.

Did: published, sealed, truncated the topic over HTTP, and read its table; also after a kill.
Saw: all rows, for up to ten minutes, and after a restart until somebody used the topic.
Expected: the rows are gone from the newest version once the request is answered.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from pulsark.admin_client.client import AdminClient
from tests.support.python_client import connected
from tests.support.standalone import Standalone


@pytest.mark.parametrize("partitions", [0, 3])
def test_truncated_rows_are_gone_when_the_request_is_answered(
    shared_standalone: Standalone, partitions: int
) -> None:
    name = f"persistent/public/default/truncated-{partitions}"
    topic = name.replace("/", "://", 1)
    admin = AdminClient(shared_standalone.web_url)
    if partitions:
        admin.call("PUT", f"/{name}/partitions", partitions)
    with connected(shared_standalone) as client:
        producer = client.create_producer(topic, batching_enabled=False)
        for number in range(12):
            producer.send(b"%d" % number)
    admin.call("POST", f"/{name}/seal")
    where = str(admin.call("GET", f"/{name}/table")["directories"][0])
    assert DeltaTable(where).to_pyarrow_table().num_rows == 12
    admin.call("DELETE", f"/{name}/truncate")
    assert DeltaTable(where).to_pyarrow_table().num_rows == 0
    assert DeltaTable(where, version=1).to_pyarrow_table().num_rows > 0


def test_truncated_rows_do_not_come_back_after_a_kill(tmp_path: Path) -> None:
    name = "persistent/public/default/truncated"
    with Standalone(tmp_path / "data") as standalone:
        admin = AdminClient(standalone.web_url)
        with connected(standalone) as client:
            client.create_producer(name.replace("/", "://", 1)).send(b"gone")
        admin.call("POST", f"/{name}/seal")
        where = str(admin.call("GET", f"/{name}/table")["directories"][0])
        admin.call("DELETE", f"/{name}/truncate")
        standalone.kill()
        assert DeltaTable(where).to_pyarrow_table().num_rows == 0
