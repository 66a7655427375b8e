"""``/status.html``: for load balancers and probes, which have no credentials."""

from __future__ import annotations

import os

from fastapi.responses import Response

from pulsark.admin.http.errors import fail
from pulsark.admin.http.guard import Guarded, open_to_all
from pulsark.admin.http.places import HERE
from pulsark.admin.http.requests import BrokerOf, text
from pulsark.config.settings import Settings

router = Guarded(at=HERE, tags=["brokers"])


@router.get("/status.html", needs=open_to_all)
async def status(broker: BrokerOf) -> Response:
    """``OK`` when this broker has started and is to get clients, else 404.

    It does not ask for the metadata store: loaded topics are served without it.
    """
    if not any(broker.urls) or _is_taken_out(broker.settings):
        raise fail(404, "This broker is not to get clients")
    return text("OK")


def _is_taken_out(settings: Settings) -> bool:
    """Whether an operator has removed the file that says that there may be clients."""
    path = settings.statusFilePath
    return bool(path) and not os.path.isfile(path)
