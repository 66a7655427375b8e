"""``pulsark brokers`` and ``pulsark bundles``: which brokers there are, and what each serves."""

from __future__ import annotations

from itertools import pairwise
from textwrap import wrap
from typing import Annotated, Any

import typer

from pulsark.admin_client.client import AdminClient
from pulsark.admin_client.paths import segment
from pulsark.cli.admin.access import admin_client
from pulsark.cli.terminal.arguments import DEFAULT_ADMIN_URL, AdminUrl, Json
from pulsark.cli.terminal.output import human_rate, human_size, print_json, print_table

brokers = typer.Typer(
    help="List the live brokers, show one, and change settings of all.", no_args_is_help=True
)
bundles = typer.Typer(
    help="List the bundles of a namespace with their brokers, move them and split them.",
    no_args_is_help=True,
)

BrokerId = Annotated[
    str, typer.Argument(metavar="BROKER", help="host:port, as list prints it.", show_default=False)
]
Namespace = Annotated[
    str, typer.Argument(metavar="TENANT/NAMESPACE", help="The namespace.", show_default=False)
]


@brokers.command("list")
def list_brokers(admin_url: AdminUrl = DEFAULT_ADMIN_URL, as_json: Json = False) -> None:
    """List the live brokers, and how busy they are."""
    live = _live(admin_client(admin_url))
    found = live["brokers"]
    if as_json:
        print_json([each["brokerId"] for each in found])
        return
    rows = [
        (
            each["brokerId"] + (" (leader)" if each["leader"] else ""),
            f"{each['load']['utilisation']:.0%}",
            str(each["load"]["bundles"]),
            str(each["load"]["topics"]),
            human_rate(each["load"]["messages_in"]),
            human_rate(each["load"]["messages_out"]),
            str(each.get("featureLevel", 0)),
        )
        for each in found
    ]
    numbers = ("busy", "bundles", "topics", "in/s", "out/s", "level")
    print_table((("broker", False), *((each, True) for each in numbers)), rows)
    if any(each.get("featureLevel", 0) != _level(live) for each in found):
        print(f"The cluster is at feature level {_level(live)}; see docs/cluster.md")


@brokers.command("leader")
def show_leader(admin_url: AdminUrl = DEFAULT_ADMIN_URL, as_json: Json = False) -> None:
    """Show the broker that gives bundles to brokers."""
    found = admin_client(admin_url).get("/brokers/leaderBroker")
    if as_json:
        print_json(found)
    else:
        print(f"{found['brokerId']} at {found['serviceUrl']}")


@brokers.command("show")
def show_broker(
    broker: BrokerId, admin_url: AdminUrl = DEFAULT_ADMIN_URL, as_json: Json = False
) -> None:
    """Show one broker: its addresses, its load, and its bundles."""
    client = admin_client(admin_url)
    live = _live(client)
    found = next((each for each in live["brokers"] if each["brokerId"] == broker), None)
    if found is None:
        raise SystemExit(f"pulsark: {broker} is not a live broker; pulsark brokers list shows all")
    owned = _owned(client, live["cluster"], broker)
    if as_json:
        print_json({**found, "bundles": owned})
        return
    load = found["load"]
    urls = [found[name] for name in found if name.endswith(("Url", "UrlTls"))]
    print(f"{broker}{', the leader' if found['leader'] else ''}, {found['brokerVersion']}")
    print(f"feature level {found.get('featureLevel', 0)}; the cluster is at {_level(live)}")
    print("\n".join(f"  {url}" for url in urls))
    print(f"{load['utilisation']:.0%} busy; {load['topics']} topics loaded")
    for way, said in (("in", "in"), ("out", "out")):
        size = human_size(load[f"bytes_{way}"])
        print(f"{human_rate(load[f'messages_{way}'])} messages/s {said}, {size}/s")
    print(f"{len(owned)} bundles" + "".join(f"\n  {bundle}" for bundle in owned))


@brokers.command("health")
def show_health(admin_url: AdminUrl = DEFAULT_ADMIN_URL, as_json: Json = False) -> None:
    """Show how full the disks of the broker that is asked are, and whether it takes publishes."""
    found = admin_client(admin_url).get("/brokers/health/detail")
    if as_json:
        print_json(found)
        return
    print("publishes are refused" if found["refusesPublishes"] else "publishes are taken")
    print(f"{found['bookiesAvailable']} of {found['bookiesConfigured']} bookies")
    columns = (("disk of", False), ("state", False), *((n, True) for n in ("used", "free")))
    rows = [
        (
            each["path"],
            each["state"].lower(),
            f"{each['usedShare']:.0%}",
            each["error"] or human_size(each["freeBytes"]),
        )
        for each in found["disks"]
    ]
    if rows:
        print_table(columns, rows)


# -- settings of all brokers ---

Config = Annotated[str, typer.Option("--config", help="Name of the setting.", show_default=False)]


@brokers.command("list-dynamic-config")
def list_dynamic(admin_url: AdminUrl = DEFAULT_ADMIN_URL, as_json: Json = False) -> None:
    """List the settings that can be changed while brokers run."""
    found = admin_client(admin_url).get("/brokers/configuration")
    if as_json:
        print_json(found)
    else:
        print("\n".join(found))


@brokers.command("get-all-dynamic-config")
def show_dynamic(admin_url: AdminUrl = DEFAULT_ADMIN_URL, as_json: Json = False) -> None:
    """Show the settings that were changed while brokers ran."""
    _print_settings(admin_client(admin_url).get("/brokers/configuration/values"), as_json=as_json)


@brokers.command("get-runtime-config")
def show_runtime(admin_url: AdminUrl = DEFAULT_ADMIN_URL, as_json: Json = False) -> None:
    """Show all settings of the broker that is asked, as they are in force."""
    _print_settings(admin_client(admin_url).get("/brokers/configuration/runtime"), as_json=as_json)


@brokers.command("update-dynamic-config")
def update_dynamic(
    config: Config,
    value: Annotated[str, typer.Option("--value", help="What it is to be.", show_default=False)],
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Change a setting of all brokers."""
    path = f"/brokers/configuration/{segment(config)}/{segment(value)}"
    admin_client(admin_url).call("POST", path)
    print(f"Changed {config}")


@brokers.command("delete-dynamic-config")
def delete_dynamic(config: Config, admin_url: AdminUrl = DEFAULT_ADMIN_URL) -> None:
    """Have a setting be again what each broker was started with."""
    admin_client(admin_url).call("DELETE", f"/brokers/configuration/{segment(config)}")
    print(f"Restored {config}")


def _print_settings(found: dict[str, str], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
    for name, value in sorted(found.items() if not as_json else ()):
        print("\n".join(wrap(f"{name}={value}", 80, subsequent_indent="  ") or [f"{name}="]))


# -- bundles ---


@bundles.command("list")
def list_bundles(
    namespace: Namespace, admin_url: AdminUrl = DEFAULT_ADMIN_URL, as_json: Json = False
) -> None:
    """List the bundles of a namespace, and the broker of each; - is nobody."""
    client = admin_client(admin_url)
    edges = client.get(f"/namespaces/{namespace}/bundles")["boundaries"]
    live = _live(client)
    owners = {
        bundle: each["brokerId"]
        for each in live["brokers"]
        for bundle in _owned(client, live["cluster"], each["brokerId"])
    }
    names = [f"{low}_{high}" for low, high in pairwise(edges)]
    found = {name: owners.get(f"{namespace}/{name}") for name in names}
    if as_json:
        print_json(found)
    else:
        rows = [(name, owner or "-") for name, owner in found.items()]
        print_table((("bundle", False), ("broker", False)), rows)


@bundles.command("unload")
def unload_bundle(
    namespace: Namespace,
    bundle: Annotated[str, typer.Argument(help="As list prints it.", show_default=False)],
    to: Annotated[
        str, typer.Option("--destination-broker", "-d", metavar="BROKER", help="Who is to have it.")
    ] = "",
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
) -> None:
    """Have a bundle given up by its broker, with its topics; clients go where it is then."""
    query = f"?destinationBroker={segment(to)}" if to else ""
    admin_client(admin_url).call("PUT", f"/namespaces/{namespace}/{bundle}/unload{query}")
    print(f"Unloaded {bundle}" + (f" to {to}" if to else ""))


@bundles.command("split")
def split_bundle(
    namespace: Namespace,
    bundle: Annotated[str, typer.Argument(help="As list prints it.", show_default=False)],
    unload: Annotated[
        bool,
        typer.Option("--unload", "-u", help="Its broker gives up the parts; else it has them."),
    ] = False,
    algorithm: Annotated[
        str,
        typer.Option("--split-algorithm-name", "-san", metavar="NAME", help="Where it is cut."),
    ] = "",
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
    as_json: Json = False,
) -> None:
    """Cut a bundle in two; its topics go on in the part that they are in."""
    query = f"?unload={str(unload).lower()}"
    query += f"&splitAlgorithmName={segment(algorithm)}" if algorithm else ""
    client = admin_client(admin_url)
    client.call("PUT", f"/namespaces/{namespace}/{bundle}/split{query}")
    edges = client.get(f"/namespaces/{namespace}/bundles")["boundaries"]
    low, high = bundle.lower().split("_")
    inside = edges[edges.index(low) : edges.index(high) + 1]
    parts = [f"{one}_{other}" for one, other in pairwise(inside)]
    if as_json:
        print_json(parts)
    else:
        print("\n".join(parts))


def _live(client: AdminClient) -> dict[str, Any]:
    found: dict[str, Any] = client.get("/broker-stats/live-brokers")
    return found


def _level(live: dict[str, Any]) -> int:
    """The feature level of the cluster; 0 if the broker that was asked knows none."""
    return int(live.get("featureLevel", 0))


def _owned(client: AdminClient, cluster: str, broker: str) -> list[str]:
    return list(client.get(f"/brokers/{segment(cluster)}/{segment(broker)}/ownedNamespaces"))
