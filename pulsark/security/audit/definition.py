"""The topic of the audit: its name, its schema, and how long it keeps what."""

from __future__ import annotations

import json
from typing import Any

from pulsark.metadata.resources import AUDIT_TOPIC
from pulsark.schemas.definition import SchemaData, SchemaType
from pulsark.wire.topic_name import TopicName

TOPIC = TopicName.parse(AUDIT_TOPIC)

POLICIES: dict[str, Any] = {
    "retention_policies": {"retentionTimeInMinutes": 30 * 24 * 60, "retentionSizeInMB": -1},
    "table_retention": {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
    "backlog_quota_map": {
        kind: {"limitSize": -1, "limit": -1, "limitTime": -1, "policy": "producer_request_hold"}
        for kind in ("destination_storage", "message_age")
    },
    "deduplicationEnabled": False,
    "inactive_topic_policies": {
        "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
        "maxInactiveDurationSeconds": 60,
        "deleteWhileInactive": False,
    },
}
"""Those with which the topic is made; they can be changed as any. No reader holds the writer up,
and while no broker writes to it, it stays."""


def _optional(name: str, of: Any) -> dict[str, Any]:
    return {"name": name, "type": ["null", of], "default": None}


def _record(name: str, /, **fields: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [_optional(field, of) for field, of in fields.items()],
    }


_EVENT = {
    "type": "record",
    "name": "AuditEvent",
    "fields": [
        {"name": "seq", "type": "long"},
        {"name": "time", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "operation", "type": "string"},
        {"name": "via", "type": "string"},
        {"name": "class_uid", "type": "int"},
        {"name": "activity_id", "type": "int"},
        {"name": "type_uid", "type": "int"},
        {"name": "severity_id", "type": "int"},
        {"name": "status_id", "type": "int"},
        _optional("status_detail", "string"),
        _optional(
            "actor",
            _record(
                "Actor",
                role="string",
                original_role="string",
                method="string",
                token_id="string",
                cn="string",
            ),
        ),
        _optional("src_endpoint", _record("Endpoint", ip="string", port="int")),
        _optional(
            "tls",
            _record(
                "Tls",
                version="string",
                cipher="string",
                certificate=_record(
                    "Certificate", subject="string", issuer="string", serial_number="string"
                ),
            ),
        ),
        _optional("client_version", "string"),
        _optional(
            "resource",
            _record(
                "Resource",
                type="string",
                tenant="string",
                namespace="string",
                name="string",
                subscription="string",
            ),
        ),
        _optional("authz", _record("Authz", operation="string", rule="string", granted="boolean")),
        _optional("http", _record("Http", method="string", route="string", status="int")),
        _optional("parameters", {"type": "map", "values": "string"}),
        _optional("before", "string"),
        _optional("after", "string"),
        _optional("request_id", "string"),
        _optional("duration_ms", "long"),
        _optional("suppressed", "long"),
        {"name": "cluster", "type": "string"},
        {"name": "broker", "type": "string"},
        {"name": "prev_hash", "type": "string"},
    ],
}

SCHEMA = SchemaData(SchemaType.JSON, json.dumps(_EVENT).encode(), {})
