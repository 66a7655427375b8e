"""``pulsark tenants``: who owns namespaces."""

from __future__ import annotations

from typing import Annotated

import typer

from pulsark.admin_client.paths import segment
from pulsark.cli.admin.access import admin_client
from pulsark.cli.terminal.arguments import DEFAULT_ADMIN_URL, AdminUrl, Json
from pulsark.cli.terminal.output import print_json

tenants = typer.Typer(help="List, create and delete tenants.", no_args_is_help=True)

Tenant = Annotated[str, typer.Argument(help="Name of the tenant.", show_default=False)]


@tenants.command("list")
def list_tenants(admin_url: AdminUrl = DEFAULT_ADMIN_URL, as_json: Json = False) -> None:
    """List all tenants."""
    found = admin_client(admin_url).get("/tenants")
    if as_json:
        print_json(found)
    else:
        print("\n".join(found) or "No tenants")


@tenants.command("create")
def create_tenant(
    tenant: Tenant,
    admin_role: Annotated[
        list[str] | None,
        typer.Option("--admin-role", "-r", metavar="ROLE", help="May do everything in it; often."),
    ] = None,
    cluster: Annotated[
        list[str] | None,
        typer.Option("--cluster", "-c", help="It may use this cluster; else all there are."),
    ] = None,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Create a tenant."""
    client = admin_client(admin_url)
    clusters = cluster or client.get("/clusters")
    body = {"adminRoles": admin_role or [], "allowedClusters": clusters}
    client.call("PUT", f"/tenants/{segment(tenant)}", body)
    print(f"Created {tenant}")


@tenants.command("set-storage-quota")
def set_storage_quota(
    tenant: Tenant,
    size: Annotated[int, typer.Argument(metavar="BYTES", min=-1, help="-1: no limit.")],
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Limit what all namespaces of a tenant store together."""
    client, path = admin_client(admin_url), f"/tenants/{segment(tenant)}"
    client.call("POST", path, {**client.get(path), "storageQuotaBytes": size})
    print(f"{tenant} may store {'any number of' if size < 0 else size} bytes")


@tenants.command("delete")
def delete_tenant(
    tenant: Tenant,
    force: Annotated[bool, typer.Option("--force", help="Delete its namespaces too.")] = False,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Delete a tenant."""
    query = "?force=true" if force else ""
    admin_client(admin_url).call("DELETE", f"/tenants/{segment(tenant)}{query}")
    print(f"Deleted {tenant}")
