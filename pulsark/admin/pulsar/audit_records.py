"""Records of the audit, which the other brokers give to the one that has the topic.

``POST .../pulsar/system/audit/auditRecords`` with ``{"broker": name, "records": [[number, digest,
record, time of the event in ms]]}`` answers ``{"seq", "digest"}`` of the last one when all are
durable; without records that of the last one in the topic. Pulsark's own, for brokers alone.
"""

from __future__ import annotations

from fastapi import Request
from fastapi.responses import Response

from pulsark.admin.http.broker_calls import call_of
from pulsark.admin.http.errors import fail
from pulsark.admin.http.guard import Guarded, superuser
from pulsark.admin.http.paths import TOPICS
from pulsark.admin.http.places import OWNER
from pulsark.admin.http.requests import BrokerOf, TopicOf, json_object, value
from pulsark.security.audit.chain import AuditRecord, Head
from pulsark.security.audit.definition import TOPIC

router = Guarded(at=OWNER, tags=["audit"])


@router.post(TOPICS + "/{topic}/auditRecords", needs=superuser, include_in_schema=False)
async def audit_records(topic: TopicOf, request: Request, broker: BrokerOf) -> Response:
    """Publish records of another broker."""
    call = call_of(request)
    if call is None or not call.is_part:
        raise fail(403, "Only the brokers of a cluster ask this of each other")
    if topic != TOPIC:
        raise fail(404, f"The audit is not in {topic}")
    others = broker.audit_for_others
    if others is None:
        raise fail(409, "This broker has no audit: see auditEnabled")
    given = await json_object(request)
    name, lines = given["broker"], given["records"]
    if lines:
        records = [AuditRecord(Head(seq, digest), text.encode()) for seq, digest, text, _ in lines]
        last = await others.publish(name, records, [line[3] for line in lines])
    else:
        last = await others.open(name)
    return value(last._asdict())
