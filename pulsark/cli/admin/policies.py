"""``pulsark namespaces`` and ``pulsark policies``: the policies of namespaces and topics."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from pulsark.admin_client.paths import topic_path
from pulsark.cli.admin.access import admin_client
from pulsark.cli.terminal.errors import CommandError
from pulsark.cli.terminal.output import print_json
from pulsark.wire.topic_name import TopicName, parse_namespace

_PUT_AT_NAMESPACES = ("schemaCompatibilityStrategy", "compactionThreshold", "properties")
_PUT_AT_TOPICS = ("schemaCompatibilityStrategy",)
"""Pulsar sets these with PUT, all others with POST."""


def list_namespaces(admin_url: str, tenant: str, *, as_json: bool) -> None:
    """Print the namespaces of a tenant."""
    found = admin_client(admin_url).get(f"/namespaces/{quote(tenant, safe='')}")
    if as_json:
        print_json(found)
    else:
        print("\n".join(found) or f"No namespaces in {tenant}")


def create_namespace(admin_url: str, namespace: str) -> None:
    """Create a namespace without policies."""
    name = "/".join(parse_namespace(namespace))
    admin_client(admin_url).call("PUT", f"/namespaces/{name}")
    print(f"Created {name}")


def delete_namespace(admin_url: str, namespace: str, *, force: bool) -> None:
    """Delete a namespace; with ``force`` with its topics."""
    name = "/".join(parse_namespace(namespace))
    admin_client(admin_url).call("DELETE", f"/namespaces/{name}{'?force=true' if force else ''}")
    print(f"Deleted {name}")


def get_policies(admin_url: str, where: str, name: str | None, *, applied: bool) -> None:
    """Print one policy, or all of a namespace, as JSON."""
    path, is_topic = _place(where)
    if name is None:
        if is_topic:
            raise CommandError("which policy of the topic? docs/policies.md lists their names")
        print_json(admin_client(admin_url).get(path))
        return
    if name == "backlogQuota":
        name = "backlogQuotaMap"
    found = admin_client(admin_url).get(f"{path}/{name}{'?applied=true' if applied else ''}")
    print_json(found)


def set_policy(admin_url: str, where: str, name: str, value: str, kind: str | None) -> None:
    """Set a policy to a value in JSON; a text need not be quoted."""
    path, is_topic = _place(where)
    method = "PUT" if name in (_PUT_AT_TOPICS if is_topic else _PUT_AT_NAMESPACES) else "POST"
    body: Any = _json(value)
    query = ""
    if is_topic and name == "messageTTL":
        query, body = f"?messageTTL={quote(value, safe='')}", None
    elif kind is not None:
        query = f"?backlogQuotaType={quote(kind, safe='')}"
    admin_client(admin_url).call(method, f"{path}/{name}{query}", body)
    print(f"Set {name} of {where}")


def remove_policy(admin_url: str, where: str, name: str, kind: str | None) -> None:
    """Remove a policy: what holds above it holds again."""
    path, _ = _place(where)
    query = "" if kind is None else f"?backlogQuotaType={quote(kind, safe='')}"
    admin_client(admin_url).call("DELETE", f"{path}/{name}{query}")
    print(f"Removed {name} of {where}")


def _place(where: str) -> tuple[str, bool]:
    """The path of a namespace or of a topic, and whether it is a topic."""
    if "://" in where:
        return topic_path(TopicName.parse(where)), True
    return f"/namespaces/{'/'.join(parse_namespace(where))}", False


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
