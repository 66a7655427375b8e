"""The tree of commands with their options."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from pulsark import __version__

app = typer.Typer(
    name="pulsark",
    help="Publish-subscribe messaging whose topics are Delta tables.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
topics = typer.Typer(help="List, create and inspect topics.", no_args_is_help=True)
app.add_typer(topics, name="topics")

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
AdminUrl = Annotated[
    str,
    typer.Option(envvar="PULSARK_ADMIN_URL", help="The broker's HTTP address.", metavar="URL"),
]
ServiceUrl = Annotated[
    str,
    typer.Option(envvar="PULSARK_SERVICE_URL", help="The broker's address.", metavar="URL"),
]
DEFAULT_ADMIN_URL = "http://localhost:8080"
DEFAULT_SERVICE_URL = "pulsar://localhost:6650"
Topic = Annotated[str, typer.Argument(help="Name of a topic, short or full.", show_default=False)]


@app.command()
def standalone(
    data_dir: Annotated[
        str | None, typer.Option(metavar="DIR", help="Where everything is stored.")
    ] = None,
    conf: Annotated[
        str | None, typer.Option(metavar="FILE", help="Properties file, as Pulsar's broker.conf.")
    ] = None,
    bookies: Annotated[
        int | None, typer.Option(metavar="N", help="Copies are kept on this many bookies.")
    ] = None,
    broker_port: Annotated[
        int | None, typer.Option(metavar="PORT", help="Port for clients; 0 is any.")
    ] = None,
    web_port: Annotated[
        int | None, typer.Option(metavar="PORT", help="Port of HTTP; 0 is any.")
    ] = None,
    flight_port: Annotated[
        int | None, typer.Option(metavar="PORT", help="Port of Arrow Flight; 0 is any.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any setting; see `pulsark config`."),
    ] = None,
    json: Json = False,
) -> None:
    """Run a broker with its storage in one process, until Ctrl-C."""
    from pulsark.cli.standalone import run_standalone

    flags: dict[str, str | int | bool] = {}
    for item in set_ or []:
        key, equals, value = item.partition("=")
        if not equals:
            raise typer.BadParameter(f"{item}: write KEY=VALUE", param_hint="--set")
        flags[key.strip()] = value
    given = {
        "dataDir": data_dir,
        "bookies": bookies,
        "brokerServicePort": broker_port,
        "webServicePort": web_port,
        "flightServicePort": flight_port,
    }
    flags |= {key: value for key, value in given.items() if value is not None}
    run_standalone(conf, flags, as_json=json)


@app.command()
def produce(
    topic: Topic,
    message: Annotated[
        list[str] | None,
        typer.Option("--message", "-m", help="A message; without any, lines of stdin."),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Key of the messages.")] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--property", "-p", metavar="NAME=VALUE", help="Property of the messages."),
    ] = None,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Send them so often.")] = 1,
    service_url: ServiceUrl = DEFAULT_SERVICE_URL,
    json: Json = False,
) -> None:
    """Publish messages; prints the id of each once it is durable."""
    from pulsark.cli.messages import Output, run_produce

    properties = {}
    for item in header or []:
        name, equals, value = item.partition("=")
        if not equals:
            raise typer.BadParameter(f"{item}: write NAME=VALUE", param_hint="--property")
        properties[name] = value
    run_produce(service_url, topic, message or [], key, properties, count, Output(json))


@app.command()
def consume(
    topic: Topic,
    subscription: Annotated[
        str, typer.Option("--subscription", "-s", help="Name of the subscription.")
    ] = "pulsark-cli",
    number: Annotated[
        int, typer.Option("--number", "-n", min=0, help="Stop after so many; 0: go on.")
    ] = 0,
    subscription_type: Annotated[
        str, typer.Option("--type", "-t", help="exclusive, shared, failover or key_shared.")
    ] = "exclusive",
    position: Annotated[
        str, typer.Option(help="Where a new subscription starts: earliest or latest.")
    ] = "latest",
    timeout: Annotated[
        float | None, typer.Option(min=0, help="Stop when nothing came for so many seconds.")
    ] = None,
    service_url: ServiceUrl = DEFAULT_SERVICE_URL,
    json: Json = False,
) -> None:
    """Receive and acknowledge messages; prints one a line, until Ctrl-C."""
    from pulsark.cli.messages import POSITIONS, TYPES, Output, run_consume

    if subscription_type.lower() not in TYPES:
        raise typer.BadParameter(f"one of {', '.join(TYPES)}", param_hint="--type")
    if position.lower() not in POSITIONS:
        raise typer.BadParameter(f"one of {', '.join(POSITIONS)}", param_hint="--position")
    run_consume(
        service_url,
        topic,
        subscription,
        TYPES[subscription_type.lower()],
        POSITIONS[position.lower()],
        number,
        timeout,
        Output(json),
    )


@topics.command("list")
def topics_list(
    namespace: Annotated[str, typer.Argument(help="Namespace.")] = "public/default",
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
    json: Json = False,
) -> None:
    """List the topics of a namespace."""
    from pulsark.cli.topics import list_topics

    list_topics(admin_url, namespace, as_json=json)


@topics.command("create")
def topics_create(
    topic: Topic,
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", min=0, help="Partitions; 0: not partitioned.")
    ] = 0,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
    json: Json = False,
) -> None:
    """Create a topic."""
    from pulsark.cli.topics import create_topic

    create_topic(admin_url, topic, partitions, as_json=json)


@topics.command("stats")
def topics_stats(
    topic: Topic,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
    json: Json = False,
) -> None:
    """Show rates, sizes, subscriptions and who is connected."""
    from pulsark.cli.topics import topic_stats

    topic_stats(admin_url, topic, as_json=json)


@topics.command("compact")
def topics_compact(
    topic: Topic,
    wait: Annotated[bool, typer.Option(help="Return when it is done.")] = True,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
    json: Json = False,
) -> None:
    """Keep only the latest message of each key, for those who read the compacted topic."""
    from pulsark.cli.topics import compact_topic

    compact_topic(admin_url, topic, wait=wait, as_json=json)


@app.command()
def config(
    conf: Annotated[
        str | None, typer.Option(metavar="FILE", help="Properties file to apply.")
    ] = None,
    form: Annotated[str, typer.Option(hidden=True)] = "",
    json: Json = False,
) -> None:
    """List every setting: its value, its unit and what it means."""
    from pulsark.cli.settings import show_settings

    show_settings(conf, as_json=json, form=form)


@app.command()
def version(json: Json = False) -> None:
    """Print the version."""
    if json:
        from pulsark.cli.output import print_json

        print_json({"version": __version__, "python": sys.version.split()[0]})
    else:
        print(f"pulsark {__version__}")
