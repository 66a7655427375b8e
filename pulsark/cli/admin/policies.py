"""``pulsark namespaces`` and ``pulsark policies``: the policies of namespaces and topics."""

from __future__ import annotations

import json
from typing import Annotated, Any
from urllib.parse import quote

import typer

from pulsark.admin_client.paths import topic_path
from pulsark.cli.admin.access import admin_client
from pulsark.cli.terminal.arguments import DEFAULT_ADMIN_URL, AdminUrl, Json
from pulsark.cli.terminal.errors import CommandError
from pulsark.cli.terminal.output import print_json
from pulsark.wire.topic_name import TopicName, parse_namespace

_PUT_AT_NAMESPACES = ("schemaCompatibilityStrategy", "compactionThreshold", "properties")
_PUT_AT_TOPICS = ("schemaCompatibilityStrategy",)
"""Pulsar sets these with PUT, all others with POST."""


_TEXTS = ("resourcegroup", "antiAffinity")
"""Pulsar shows these as bare texts, all others as JSON."""


namespaces = typer.Typer(help="List, create and delete namespaces.", no_args_is_help=True)
policies = typer.Typer(
    help="Show, set and remove the policies of namespaces and topics.", no_args_is_help=True
)

Namespace = Annotated[str, typer.Argument(help="tenant/namespace.", show_default=False)]
Where = Annotated[
    str,
    typer.Argument(
        metavar="WHERE",
        help="A namespace, tenant/namespace, or a topic, persistent://tenant/namespace/topic.",
        show_default=False,
    ),
]
PolicyName = Annotated[
    str, typer.Argument(metavar="NAME", help="As in docs/policies.md.", show_default=False)
]
QuotaType = Annotated[
    str | None,
    typer.Option("--type", "-t", help="Of a backlog quota: destination_storage or message_age."),
]


@namespaces.command("list")
def list_namespaces(
    tenant: Annotated[str, typer.Argument(help="Tenant.")] = "public",
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
    as_json: Json = False,
) -> None:
    """List the namespaces of a tenant."""
    found = admin_client(admin_url).get(f"/namespaces/{quote(tenant, safe='')}")
    if as_json:
        print_json(found)
    else:
        print("\n".join(found) or f"No namespaces in {tenant}")


@namespaces.command("create")
def create_namespace(namespace: Namespace, admin_url: AdminUrl = DEFAULT_ADMIN_URL) -> None:
    """Create a namespace."""
    name = "/".join(parse_namespace(namespace))
    admin_client(admin_url).call("PUT", f"/namespaces/{name}")
    print(f"Created {name}")


@namespaces.command("delete")
def delete_namespace(
    namespace: Namespace,
    force: Annotated[bool, typer.Option("--force", help="Delete its topics too.")] = False,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Delete a namespace."""
    name = "/".join(parse_namespace(namespace))
    admin_client(admin_url).call("DELETE", f"/namespaces/{name}{'?force=true' if force else ''}")
    print(f"Deleted {name}")


@policies.command("get")
def get_policies(
    where: Where,
    name: Annotated[str | None, typer.Argument(help="One policy; else all of a namespace.")] = None,
    applied: Annotated[
        bool, typer.Option("--applied", help="What holds, wherever it was set.")
    ] = False,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Print a policy as JSON; null if it is not set."""
    path, is_topic = _place(where)
    if name is None:
        if is_topic:
            raise CommandError("which policy of the topic? docs/policies.md lists their names")
        print_json(admin_client(admin_url).get(path))
        return
    if name == "backlogQuota":
        name = "backlogQuotaMap"
    client = admin_client(admin_url)
    answer = client.request("GET", f"{path}/{name}{'?applied=true' if applied else ''}")
    if name in _TEXTS and answer.status == 200:
        print_json(answer.body.decode() or None)
    else:
        print_json(client.value_of(answer))


@policies.command("set")
def set_policy(
    where: Where,
    name: PolicyName,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="JSON.", show_default=False)],
    quota_type: QuotaType = None,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Set a policy. It holds at once."""
    path, is_topic = _place(where)
    method = "PUT" if name in (_PUT_AT_TOPICS if is_topic else _PUT_AT_NAMESPACES) else "POST"
    body: Any = _json(value)
    query = ""
    if is_topic and name == "messageTTL":
        query, body = f"?messageTTL={quote(value, safe='')}", None
    elif quota_type is not None:
        query = f"?backlogQuotaType={quote(quota_type, safe='')}"
    admin_client(admin_url).call(method, f"{path}/{name}{query}", body)
    print(f"Set {name} of {where}")


@policies.command("remove")
def remove_policy(
    where: Where,
    name: PolicyName,
    quota_type: QuotaType = None,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Remove a policy: that of the namespace, or the broker's setting, holds again."""
    path, _ = _place(where)
    query = "" if quota_type is None else f"?backlogQuotaType={quote(quota_type, safe='')}"
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
