"""``pulsark permissions``: what roles may do, and why."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from pulsark.admin_client.paths import segment, topic_path
from pulsark.cli.admin.access import admin_client
from pulsark.cli.terminal.arguments import DEFAULT_ADMIN_URL, AdminUrl, Json, Topic
from pulsark.cli.terminal.output import print_json, print_table
from pulsark.wire.topic_name import TopicName, parse_namespace

permissions = typer.Typer(
    help="Grant roles what they may do, show it, and say why.", no_args_is_help=True
)

Where = Annotated[
    str,
    typer.Argument(
        metavar="WHERE", help="A namespace, tenant/namespace, or a topic.", show_default=False
    ),
]
Role = Annotated[str, typer.Argument(help="Role.", show_default=False)]

_REASONS = {
    "superuser": "it is a super user",
    "tenant_admin": "it administers the tenant",
    "namespace_grant": "it was granted on the namespace",
    "topic_grant": "it was granted on the topic",
    "wildcard": "it was granted to roles that look like it",
    "login": "whoever has logged in may",
    "subscription_list": "only other roles may use this subscription",
    "prefix": "the subscription's name would have to begin with the role",
    "proxy": "it is a proxy, which has to say for whom it asks",
    "no_tenant": "the tenant does not exist",
    "system": "this is the broker's own",
    "none": "nothing grants it",
}


@permissions.command("show")
def show(where: Where, admin_url: AdminUrl = DEFAULT_ADMIN_URL, as_json: Json = False) -> None:
    """Show what was granted on a namespace, or on a topic and its namespace."""
    found = admin_client(admin_url).get(_path(where))
    if as_json:
        print_json(found)
    elif found:
        print_table(
            [("Role", False), ("May", False)],
            [(role, ", ".join(actions)) for role, actions in sorted(found.items())],
        )
    else:
        print("Nothing was granted")


@permissions.command("grant")
def grant(
    where: Where,
    role: Role,
    actions: Annotated[
        list[str], typer.Argument(metavar="ACTION...", help="produce, consume, or both.")
    ],
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Say what a role may do in a namespace or with a topic, in place of what it might before."""
    admin_client(admin_url).call("POST", f"{_path(where)}/{segment(role)}", actions)
    print(f"{role} may {' and '.join(actions)} in {where}")


@permissions.command("revoke")
def revoke(where: Where, role: Role, admin_url: AdminUrl = DEFAULT_ADMIN_URL) -> None:
    """Take what was granted to a role on a namespace or a topic."""
    admin_client(admin_url).call("DELETE", f"{_path(where)}/{segment(role)}")
    print(f"Revoked what {role} might do in {where}")


@permissions.command("why")
def why(
    role: Role,
    operation: Annotated[
        str,
        typer.Argument(help="As Pulsar names them: PRODUCE, CONSUME, LOOKUP.", show_default=False),
    ],
    topic: Topic,
    subscription: Annotated[
        str | None, typer.Option("--subscription", "-s", help="With this subscription.")
    ] = None,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
    as_json: Json = False,
) -> None:
    """Say whether a role may do something with a topic, and why. Exit code 1: it may not."""
    path = f"{topic_path(TopicName.parse(topic))}/permissions/{segment(role)}/{segment(operation)}"
    query = "" if subscription is None else f"?subscription={quote(subscription, safe='')}"
    found = admin_client(admin_url).get(path + query)
    if as_json:
        print_json(found)
    else:
        verb = "may" if found["granted"] else "may not"
        reason = _REASONS.get(found["rule"], found["rule"])
        print(f"{role} {verb} {operation.upper()}: {reason}. It needs {found['needs']}.")
    if not found["granted"]:
        raise typer.Exit(1)


def _path(where: str) -> str:
    """The permissions of a namespace, or of a topic."""
    if "://" not in where and where.count("/") == 1:
        return f"/namespaces/{'/'.join(map(segment, parse_namespace(where)))}/permissions"
    return f"{topic_path(TopicName.parse(where))}/permissions"
