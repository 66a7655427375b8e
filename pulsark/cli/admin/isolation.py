"""``pulsark isolation``, in Pulsar ``ns-isolation-policy``: who may have which namespaces."""

from __future__ import annotations

from textwrap import wrap
from typing import Annotated, Any

import typer

from pulsark.admin_client.paths import segment
from pulsark.cli.admin.access import admin_client
from pulsark.cli.terminal.arguments import DEFAULT_ADMIN_URL, AdminUrl, Json, named
from pulsark.cli.terminal.output import print_json, print_table
from pulsark.cli.terminal.plain_help import PlainHelp

isolation = typer.Typer(
    help="Keep namespaces to some brokers: list, show, set and delete policies.",
    no_args_is_help=True,
)

Cluster = Annotated[str, typer.Argument(help="Name of the cluster.", show_default=False)]
Policy = Annotated[str, typer.Argument(help="Name of the policy.", show_default=False)]
_PATTERNS = "regular expressions, with commas between them."


@isolation.command("list")
def list_policies(
    cluster: Cluster, admin_url: AdminUrl = DEFAULT_ADMIN_URL, as_json: Json = False
) -> None:
    """List the policies of a cluster, and what each says."""
    client = admin_client(admin_url)
    client.get(f"/clusters/{segment(cluster)}")  # says so if there is no such cluster
    answer = client.request("GET", _path(cluster))
    found: dict[str, Any] = {} if answer.status == 404 else client.value_of(answer)
    if as_json:
        print_json(found)
        return
    for name, policy in found.items():
        print(name)
        for key in ("namespaces", "primary", "secondary"):
            for each in policy[key]:
                print("\n".join(wrap(f"  {key:10} {each}", 80, subsequent_indent=" " * 13)))
    if not found:
        print("No isolation policies")


@isolation.command("get")
def get_policy(cluster: Cluster, policy: Policy, admin_url: AdminUrl = DEFAULT_ADMIN_URL) -> None:
    """Print a policy as JSON."""
    print_json(admin_client(admin_url).get(f"{_path(cluster)}/{segment(policy)}"))


@isolation.command("set", cls=PlainHelp)
def set_policy(
    cluster: Cluster,
    policy: Policy,
    namespaces: Annotated[
        str, typer.Option("--namespaces", help=f"Its namespaces: {_PATTERNS}", show_default=False)
    ],
    primary: Annotated[
        str,
        typer.Option(
            "--primary", help=f"Its brokers, as host:port: {_PATTERNS}", show_default=False
        ),
    ],
    secondary: Annotated[
        str, typer.Option("--secondary", help="The same of brokers for when those are missing.")
    ] = "",
    failover: Annotated[
        str, typer.Option("--auto-failover-policy-type", help="min_available is the only one.")
    ] = "min_available",
    parameters: Annotated[
        str,
        typer.Option(
            "--auto-failover-policy-params",
            help="When they are missing: with fewer than min_limit primary brokers that are less "
            "busy than usage_threshold percent.",
        ),
    ] = "min_limit=1,usage_threshold=100",
    scope: Annotated[
        str, typer.Option("--unload-scope", help="none: move nothing that is elsewhere now.")
    ] = "",
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Set a policy; bundles that it takes away from their brokers are moved."""
    body: dict[str, Any] = {
        "namespaces": _parts(namespaces),
        "primary": _parts(primary),
        "secondary": _parts(secondary),
        "auto_failover_policy": {
            "policy_type": failover,
            "parameters": named(_parts(parameters)),
        },
    }
    if scope:
        body["unload_scope"] = scope
    admin_client(admin_url).call("POST", f"{_path(cluster)}/{segment(policy)}", body)
    print(f"Set {policy}")


@isolation.command("delete")
def delete_policy(
    cluster: Cluster, policy: Policy, admin_url: AdminUrl = DEFAULT_ADMIN_URL
) -> None:
    """Delete a policy."""
    admin_client(admin_url).call("DELETE", f"{_path(cluster)}/{segment(policy)}")
    print(f"Deleted {policy}")


@isolation.command("brokers")
def list_brokers(
    cluster: Cluster, admin_url: AdminUrl = DEFAULT_ADMIN_URL, as_json: Json = False
) -> None:
    """List the live brokers, each with the policy that it is in."""
    found = admin_client(admin_url).get(f"{_path(cluster)}/brokers")
    if as_json:
        print_json(found)
        return
    rows = [
        (
            each["brokerName"],
            each["policyName"] or "-",
            ("primary" if each["primary"] else "secondary") if each["policyName"] else "-",
        )
        for each in found
    ]
    print_table((("broker", False), ("policy", False), ("is", False)), rows)


def _path(cluster: str) -> str:
    return f"/clusters/{segment(cluster)}/namespaceIsolationPolicies"


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
