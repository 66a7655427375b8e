"""Tasks for which nobody waits."""

from __future__ import annotations

import asyncio

import pytest

from pulsark.errors import StorageError
from pulsark.tasks import unattended


async def fail(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "traced"), [(AttributeError("a defect"), True), (StorageError("a full disk"), False)]
)
def test_the_log_tells_what_ended_an_unattended_task(
    error: Exception, traced: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        task = unattended(fail(error), "keeping the lease")
        await asyncio.wait([task])

    asyncio.run(main())
    (record,) = caplog.records
    assert record.getMessage() == f"keeping the lease has ended with an error: {error!r}"
    assert bool(record.exc_info) is traced


def test_a_cancelled_one_is_not_told_of(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        task = unattended(asyncio.sleep(1000), "keeping the lease")
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(main())
    assert caplog.records == []
