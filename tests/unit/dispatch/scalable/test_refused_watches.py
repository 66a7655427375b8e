"""What clients of Pulsar 5 may ask to watch, and is not there: they are told so and stay."""

from __future__ import annotations

import pytest

from pulsark.errors import ServerError
from pulsark.wire import pulsar_pb2 as pb
from tests.support.broker_clients import Client, Command, scenario


@pytest.mark.command("WATCH_TC_ASSIGNMENTS", "WATCH_TC_ASSIGNMENTS_UPDATE")
@pytest.mark.command("WATCH_TC_ASSIGNMENTS_CLOSE")
@scenario()
async def test_there_are_no_coordinators_to_watch(broker) -> None:
    client = Client(broker)
    watch = pb.CommandWatchTcAssignments(watch_id=6)
    end = pb.CommandWatchTcAssignmentsClose(watch_id=6)
    client.send(
        Command(type=Command.WATCH_TC_ASSIGNMENTS, watchTcAssignments=watch),
        Command(type=Command.WATCH_TC_ASSIGNMENTS_CLOSE, watchTcAssignmentsClose=end),
    )
    answer = (await client.take(Command.WATCH_TC_ASSIGNMENTS_UPDATE)).watchTcAssignmentsUpdate
    assert (answer.watch_id, answer.error) == (6, ServerError.NotAllowedError)
    assert client.connection.is_open
