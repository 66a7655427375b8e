"""The commands of ``pulsark topics``."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from pulsark.admin_client.client import AdminClient
from pulsark.admin_client.paths import topic_path
from pulsark.cli.admin.access import admin_client
from pulsark.cli.terminal.arguments import DEFAULT_ADMIN_URL, AdminUrl, Json, Topic
from pulsark.cli.terminal.errors import CommandError
from pulsark.cli.terminal.output import human_rate, human_size, print_json, print_table
from pulsark.errors import PulsarkError
from pulsark.wire.topic_name import NON_PERSISTENT, PERSISTENT, TopicName, parse_namespace

topics = typer.Typer(help="List, create and inspect topics.", no_args_is_help=True)

POLL_SECONDS = 0.2
PROGRESS_SECONDS = 5.0
"""Between two lines that say how far sealing is."""


@topics.command("list")
def list_topics(
    namespace: Annotated[str, typer.Argument(help="Namespace.")] = "public/default",
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
    as_json: Json = False,
) -> None:
    """List the topics of a namespace."""
    tenant, local = parse_namespace(namespace)
    client = admin_client(admin_url)
    partitions: Counter[str] = Counter()
    for domain in (PERSISTENT, NON_PERSISTENT):
        path = f"/{domain}/{tenant}/{local}"
        bases = set(client.get(f"{path}/partitioned"))
        for full_name in client.get(path):
            base = str(TopicName.parse(full_name).base)
            partitions[base if base in bases else full_name] += base in bases
    found = [{"topic": name, "partitions": partitions[name]} for name in sorted(partitions)]
    if as_json:
        print_json(found)
    elif found:
        rows = [(item["topic"], item["partitions"] or "-") for item in found]
        print_table([("TOPIC", False), ("PARTITIONS", True)], rows)
    else:
        print(f"No topics in {tenant}/{local}")


@topics.command("create")
def create_topic(
    topic: Topic,
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", min=0, help="Partitions; 0: not partitioned.")
    ] = 0,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
    as_json: Json = False,
) -> None:
    """Create a topic."""
    name = TopicName.parse(topic)
    client = admin_client(admin_url)
    if partitions:
        client.call("PUT", f"{topic_path(name)}/partitions", partitions)
    else:
        client.call("PUT", topic_path(name))
    if as_json:
        print_json({"topic": str(name), "partitions": partitions})
    else:
        print(f"Created {name}" + (f" with {partitions} partitions" if partitions else ""))


@topics.command("compact")
def compact_topic(
    topic: Topic,
    wait: Annotated[bool, typer.Option(help="Return when it is done.")] = True,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
    as_json: Json = False,
) -> None:
    """Keep only the latest message of each key, for readers of the compacted topic."""
    name = TopicName.parse(topic)
    client = admin_client(admin_url)
    client.call("PUT", f"{topic_path(name)}/compaction")
    partitions = client.get(f"{topic_path(name)}/partitions")["partitions"]
    leaves = [name.with_partition(i) for i in range(partitions)] or [name]
    results = {str(leaf): _compaction_status(client, leaf, wait=wait) for leaf in leaves}
    if as_json:
        print_json(results)
    else:
        for leaf, status in results.items():
            print(f"{leaf}: {status['status']}")
    errors = [s["lastError"] for s in results.values() if s["status"] == "ERROR"]
    if errors:
        raise CommandError(f"Compaction failed: {errors[0]}")


def _compaction_status(client: AdminClient, name: TopicName, *, wait: bool) -> dict[str, Any]:
    while True:
        status: dict[str, Any] = client.get(f"{topic_path(name)}/compaction")
        if not wait or status["status"] != "RUNNING":
            return status
        time.sleep(POLL_SECONDS)  # noqa: TID251 - a command has no loop


@topics.command("truncate")
def truncate_topic(topic: Topic, admin_url: AdminUrl = DEFAULT_ADMIN_URL) -> None:
    """Delete all messages of a topic, acknowledged or not, whatever retention says."""
    name = TopicName.parse(topic)
    admin_client(admin_url).call("DELETE", f"{topic_path(name)}/truncate")
    print(f"{name} is empty; subscriptions go on with what comes next")


@topics.command("seal")
def seal_topic(
    topic: Topic,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
    as_json: Json = False,
) -> None:
    """Bring everything published by now into the topic's table, and print where it is."""
    path = topic_path(TopicName.parse(topic))
    done = threading.Event()
    told = threading.Thread(
        target=_tell_of_sealing, args=(admin_client(admin_url), path, done), daemon=True
    )
    told.start()
    try:  # as long as it takes: clients that publish go first
        admin_client(admin_url, timeout_s=None).call("POST", f"{path}/seal")
    finally:
        done.set()
    topic_table(topic, admin_url, as_json)


def _tell_of_sealing(client: AdminClient, path: str, done: threading.Event) -> None:
    """Say how many rows there are, again and again until it is done."""
    while not done.wait(PROGRESS_SECONDS):
        try:
            answer = client.request("GET", f"{path}/table")
            rows = 0 if answer.status == 404 else client.value_of(answer)["rows"]
            said = f"sealing: {rows:,} rows are in the table"
        except PulsarkError as error:
            said = str(error)
        if not done.is_set():
            print(said, file=sys.stderr)


@topics.command("table")
def topic_table(
    topic: Topic,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
    as_json: Json = False,
) -> None:
    """Print where the topic's Delta table is."""
    found = admin_client(admin_url).get(f"{topic_path(TopicName.parse(topic))}/table")
    if as_json:
        print_json(found)
    else:
        print(found["uri"])


@topics.command("stats")
def topic_stats(
    topic: Topic,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
    as_json: Json = False,
) -> None:
    """Show rates, sizes, subscriptions and who is connected."""
    name = TopicName.parse(topic)
    client = admin_client(admin_url)
    path = topic_path(name)
    metadata = client.get(f"{path}/partitions")
    if not isinstance(metadata, dict):
        raise CommandError(f"{admin_url} does not answer like a broker's admin API")
    partitioned = metadata["partitions"] > 0
    kind = "partitioned-stats" if partitioned else "stats"
    stats = client.get(f"{path}/{kind}?getEarliestTimeInBacklog=true")
    if as_json:
        print_json(stats)
        return
    _print_topic(str(name), metadata["partitions"], stats)


def _print_topic(name: str, partitions: int, stats: dict[str, Any]) -> None:
    print(name)
    facts = [
        ("Partitions", partitions or "-"),
        ("In", _flow(stats, "In", "bytesInCounter", "msgInCounter")),
        ("Out", _flow(stats, "Out", "bytesOutCounter", "msgOutCounter")),
        ("Stored", human_size(stats["storageSize"])),
        ("Producers", len(stats["publishers"])),
    ]
    scalable = stats.get("scalable")
    if scalable:
        facts.append(("V5 lookups", scalable["sessions"]))
    for label, value in facts:
        print(f"  {label:11} {value}")
    if stats["subscriptions"]:
        _print_subscriptions(stats)
    else:
        print("No subscriptions")
    if stats.get("sparkQueries"):
        _print_queries(stats["sparkQueries"])
    if scalable and scalable["groups"]:
        _print_groups(scalable["groups"])


def _print_subscriptions(stats: dict[str, Any]) -> None:
    rows = [
        (
            subscription,
            found["type"],
            f"{found['msgBacklog']:,}",
            f"{found['unackedMessages']:,}",
            human_rate(found["msgRateOut"]),
            len(found["consumers"]),
        )
        for subscription, found in sorted(stats["subscriptions"].items())
    ]
    columns = [
        ("SUBSCRIPTION", False),
        ("TYPE", False),
        ("BACKLOG", True),
        ("UNACKED", True),
        ("MSG/S", True),
        ("CONSUMERS", True),
    ]
    print_table(columns, rows)


def _print_queries(queries: list[dict[str, Any]]) -> None:
    rows = [
        (
            query.get("name") or query.get("id") or query["query"],
            query["subscription"] or "-",
            query["client"],
            query.get("batchId", "-"),
            human_rate(query.get("processedRowsPerSecond", 0.0)),
            f"{query['msgBacklog']:,}",
            _waiting(query["earliestMsgPublishTimeInBacklog"]),
        )
        for query in queries
    ]
    columns = [
        ("SPARK QUERY", False),
        ("SUBSCRIPTION", False),
        ("AT", False),
        ("BATCH", True),
        ("ROWS/S", True),
        ("BEHIND", True),
        ("SINCE", False),
    ]
    print_table(columns, rows)


def _print_groups(groups: list[dict[str, Any]]) -> None:
    """Who shares the segments, which are the partitions, with whom."""
    rows = [
        (
            group["subscription"],
            group["type"],
            consumer["consumerName"],
            "yes" if consumer["connected"] else "no",
            " ".join(map(str, consumer["segments"])) or "-",
        )
        for group in groups
        for consumer in group["consumers"]
    ]
    columns = ["SUBSCRIPTION", "GROUP OF", "CONSUMER", "CONNECTED", "SEGMENTS"]
    print_table([(name, False) for name in columns], rows)


def _waiting(published_ms: int) -> str:
    """When the oldest message was published that is not read; nothing if all are."""
    if not published_ms:
        return "-"
    return datetime.fromtimestamp(published_ms / 1000, UTC).isoformat(timespec="seconds")


def _flow(stats: dict[str, Any], direction: str, size_key: str, messages_key: str) -> str:
    return (
        f"{human_rate(stats[f'msgRate{direction}'])} msg/s, "
        f"{human_size(stats[f'msgThroughput{direction}'])}/s, "
        f"{stats[messages_key]:,} msg and {human_size(stats[size_key])} since loaded"
    )
