"""The tree of commands with their options."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from pulsark import __version__
from pulsark.cli.admin.audit import audit
from pulsark.cli.admin.bookies import bookies
from pulsark.cli.admin.brokers import brokers, bundles
from pulsark.cli.admin.isolation import isolation
from pulsark.cli.admin.ledgers import ledgers
from pulsark.cli.admin.permissions import permissions
from pulsark.cli.admin.policies import namespaces, policies
from pulsark.cli.admin.resource_groups import resource_groups
from pulsark.cli.admin.schemas import schemas
from pulsark.cli.admin.tables import tables
from pulsark.cli.admin.tenants import tenants
from pulsark.cli.admin.topics import topics
from pulsark.cli.terminal.arguments import (
    DEFAULT_ADMIN_URL,
    DEFAULT_SERVICE_URL,
    AdminUrl,
    Json,
    ServiceUrl,
    Topic,
    named,
)
from pulsark.cli.terminal.login import LOGIN, CommandLogin
from pulsark.cli.terminal.plain_help import PlainHelp
from pulsark.cli.token_commands import tokens

app = typer.Typer(
    name="pulsark",
    help="Publish-subscribe messaging whose topics are Delta tables.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(topics, name="topics")
app.add_typer(schemas, name="schemas")
app.add_typer(tokens, name="tokens")
app.add_typer(tenants, name="tenants")
app.add_typer(namespaces, name="namespaces")
app.add_typer(policies, name="policies")
app.add_typer(resource_groups, name="resource-groups")
app.add_typer(brokers, name="brokers")
app.add_typer(bookies, name="bookies")
app.add_typer(isolation, name="isolation")
app.add_typer(isolation, name="ns-isolation-policy", hidden=True)  # Pulsar's name, which is long
app.add_typer(bundles, name="bundles")
app.add_typer(permissions, name="permissions")
app.add_typer(audit, name="audit")
jobs = typer.Typer(help="List jobs, and run one here.", no_args_is_help=True)
app.add_typer(jobs, name="jobs")
app.add_typer(ledgers, name="ledgers")
app.add_typer(tables, name="tables")
doctor = typer.Typer(help="Find out what is missing or damaged, and what to do.")
app.add_typer(doctor, name="doctor")


@app.callback()
def before_the_command(
    auth_plugin: Annotated[
        str | None,
        typer.Option(envvar="PULSARK_AUTH_PLUGIN", help="How to log in: token, basic or tls."),
    ] = None,
    auth_params: Annotated[
        str,
        typer.Option(
            envvar="PULSARK_AUTH_PARAMS",
            help="For example file:///PATH of a token. Others see what stands here: use files.",
        ),
    ] = "",
    tls_trust_cert_path: Annotated[
        str,
        typer.Option(
            envvar="PULSARK_TLS_TRUST_CERTS", metavar="FILE", help="CAs of the broker, in PEM."
        ),
    ] = "",
) -> None:
    """Publish-subscribe messaging whose topics are Delta tables."""
    LOGIN.set(CommandLogin(auth_plugin, auth_params, tls_trust_cert_path))


@app.command("standalone")
def run_standalone() -> None:
    """Run a broker with its storage in one process, until Ctrl-C."""
    # Only listed here: ``cli.main`` gives the command and its options to ``cli.standalone``.
    from pulsark.cli.standalone import standalone

    standalone([])


@app.command("initialize-cluster-metadata", cls=PlainHelp)
def initialize_cluster_metadata(
    cluster: Annotated[
        str, typer.Option("--cluster", "-c", help="Name of the cluster.", show_default=False)
    ],
    metadata_store: Annotated[
        str,
        typer.Option(
            "--metadata-store",
            "-md",
            metavar="URL",
            help="zk:HOST:2181/PATH, or etcd:http://HOST:2379/PATH.",
            show_default=False,
        ),
    ],
    web_service_url: Annotated[
        str,
        typer.Option(
            "--web-service-url", "-uw", metavar="URL", help="http://HOST:8080", show_default=False
        ),
    ],
    web_service_url_tls: Annotated[
        str, typer.Option("--web-service-url-tls", "-tw", metavar="URL", help="https://HOST:8443")
    ] = "",
    broker_service_url: Annotated[
        str, typer.Option("--broker-service-url", "-ub", metavar="URL", help="pulsar://HOST:6650")
    ] = "",
    broker_service_url_tls: Annotated[
        str,
        typer.Option(
            "--broker-service-url-tls", "-tb", metavar="URL", help="pulsar+ssl://HOST:6651"
        ),
    ] = "",
    configuration_store: Annotated[
        str,
        typer.Option(
            "--configuration-metadata-store",
            "-cms",
            metavar="URL",
            help="Where clusters, tenants and namespaces are, if elsewhere.",
        ),
    ] = "",
    store_config: Annotated[
        str,
        typer.Option(
            "--metadata-store-config-path",
            "-mscp",
            metavar="FILE",
            help="Settings of the client of ZooKeeper or etcd: TLS and login.",
        ),
    ] = "",
    bundles: Annotated[
        int,
        typer.Option(
            "--default-namespace-bundle-number",
            "-bn",
            min=0,
            help="Bundles of public/default; 0 is 16.",
        ),
    ] = 0,
    bookkeeper: Annotated[
        str,
        typer.Option(
            "--bookkeeper-metadata-service-uri",
            metavar="URI",
            help="Where BookKeeper is to be; else below the metadata store, in ledgers.",
        ),
    ] = "",
    existing_bookkeeper: Annotated[
        str,
        typer.Option(
            "--existing-bk-metadata-service-uri",
            metavar="URI",
            help="The same of a BookKeeper that is there: nothing of it is made.",
        ),
    ] = "",
    json: Json = False,
) -> None:
    """Make a new cluster's metadata, once, before its bookies and brokers start."""
    from pulsark.cli.initialize import Wanted, run_initialize

    wanted = Wanted(
        cluster,
        metadata_store,
        configuration_store,
        store_config,
        bookkeeper,
        existing_bookkeeper,
        bundles,
    )
    urls = {
        "serviceUrl": web_service_url,
        "serviceUrlTls": web_service_url_tls,
        "brokerServiceUrl": broker_service_url,
        "brokerServiceUrlTls": broker_service_url_tls,
    }
    run_initialize(wanted, urls, as_json=json)


@app.command("broker")
def run_broker() -> None:
    """Run a broker of a cluster, until Ctrl-C."""
    from pulsark.cli.broker import broker

    broker([])


@app.command("cluster")
def run_cluster() -> None:
    """Try a cluster on one machine: ZooKeeper, bookies and brokers, until Ctrl-C."""
    from pulsark.cli.broker import cluster

    cluster([])


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
    from pulsark.cli.admin.messages import MessageOutput, run_produce

    run_produce(service_url, topic, message or [], key, named(header), count, MessageOutput(json))


@app.command()
def consume(
    topic: Topic,
    subscription: Annotated[
        str, typer.Option("--subscription", "-s", help="Name of the subscription.")
    ] = "pulsark-cli",
    number: Annotated[
        int,
        typer.Option("--number", "-n", min=0, help="Stop after this number of messages; 0: go on."),
    ] = 0,
    subscription_type: Annotated[
        str, typer.Option("--type", "-t", help="exclusive, shared, failover or key_shared.")
    ] = "exclusive",
    position: Annotated[
        str, typer.Option(help="Where a new subscription starts: earliest or latest.")
    ] = "latest",
    timeout: Annotated[
        float | None, typer.Option(min=0, help="Stop after this many seconds without a message.")
    ] = None,
    service_url: ServiceUrl = DEFAULT_SERVICE_URL,
    json: Json = False,
) -> None:
    """Receive and acknowledge messages; prints one a line, until Ctrl-C."""
    from pulsark.cli.admin.messages import POSITIONS, TYPES, MessageOutput, run_consume

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
        MessageOutput(json),
    )


@jobs.command("list")
def jobs_list(json: Json = False) -> None:
    """List the jobs."""
    from pulsark.cli.jobs import list_jobs

    list_jobs(as_json=json)


@jobs.command(
    "run",
    context_settings={
        "ignore_unknown_options": True,
        "allow_extra_args": True,
        "help_option_names": [],
    },
)
def jobs_run(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)],
) -> None:
    """Run a job, as jobs/NAME.py does under spark-submit; NAME --help lists its flags."""
    from pulsark.cli.jobs import run_job

    if name in ("-h", "--help"):  # of this command: what follows a name is for the job
        print(context.get_help())
        return
    raise typer.Exit(run_job(name, context.args))


@app.command()
def backup(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="A new directory.", show_default=False)
    ],
    data_dir: Annotated[
        str | None, typer.Option(metavar="DIR", help="Data directory of a standalone.")
    ] = None,
    conf: Annotated[
        str | None, typer.Option(metavar="FILE", help="Settings of its standalone, if any.")
    ] = None,
    json: Json = False,
) -> None:
    """Copy a data directory as it is at one moment, while its standalone runs or not."""
    from pulsark.cli.backup import make_backup

    if not make_backup(target, data_dir, conf, as_json=json):
        raise typer.Exit(1)


@app.command()
def restore(
    backup: Annotated[
        str, typer.Argument(metavar="BACKUP", help="Directory of a backup.", show_default=False)
    ],
    data_dir: Annotated[
        str, typer.Option(metavar="DIR", help="A new data directory.", show_default=False)
    ],
    conf: Annotated[
        str | None, typer.Option(metavar="FILE", help="Settings of its standalone, if any.")
    ] = None,
    json: Json = False,
) -> None:
    """Make a data directory of a backup; then `pulsark standalone` serves it."""
    from pulsark.cli.backup import run_restore

    run_restore(backup, data_dir, conf, as_json=json)


@app.command()
def config(
    conf: Annotated[
        str | None, typer.Option(metavar="FILE", help="Properties file to apply.")
    ] = None,
    form: Annotated[str, typer.Option(hidden=True)] = "",
    spark: Annotated[
        bool, typer.Option("--spark", help="Print a spark-defaults.conf for spark-submit.")
    ] = False,
    json: Json = False,
) -> None:
    """List every setting: its value, its unit and what it means."""
    if spark:
        from pulsark.datasource.spark_defaults import properties_file

        print(properties_file(), end="")
        return
    from pulsark.cli.settings import show_settings

    show_settings(conf, as_json=json, form=form)


@app.command()
def version(json: Json = False) -> None:
    """Print the version."""
    if json:
        from pulsark.cli.terminal.output import print_json

        print_json({"version": __version__, "python": sys.version.split()[0]})
    else:
        print(f"pulsark {__version__}")


@doctor.callback(invoke_without_command=True)
def doctor_data(
    context: typer.Context,
    data_dir: Annotated[
        str | None, typer.Option(metavar="DIR", help="A data directory that is not in use.")
    ] = None,
    conf: Annotated[
        str | None, typer.Option(metavar="FILE", help="Settings of its standalone, if any.")
    ] = None,
    accept_loss: Annotated[
        str | None,
        typer.Option(metavar="WHAT", help="Go on without what the doctor named as damaged."),
    ] = None,
    json: Json = False,
) -> None:
    """Check a stopped data directory: metadata store, bookies, journals, tables."""
    if context.invoked_subcommand is not None:
        return
    if data_dir is None:
        print(context.get_help())
        raise typer.Exit(2)
    from pulsark.cli.doctor.data_dir import run_data_doctor

    if not run_data_doctor(data_dir, conf, accept_loss, as_json=json):
        raise typer.Exit(1)


@doctor.command("spark")
def doctor_spark(
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
    service_url: ServiceUrl = DEFAULT_SERVICE_URL,
    json: Json = False,
) -> None:
    """Check what Spark needs to read topics: Python, discovery, jars, sockets, broker."""
    from pulsark.cli.doctor.spark import run_doctor

    if not run_doctor(admin_url, service_url, as_json=json):
        raise typer.Exit(1)


@doctor.command("security")
def doctor_security(
    conf: Annotated[
        str | None, typer.Option(metavar="FILE", help="Settings of the standalone or broker.")
    ] = None,
    json: Json = False,
) -> None:
    """Check what the settings leave open: ports, logins, roles, certificates, files."""
    from pulsark.cli.doctor.security import run_security_doctor

    if not run_security_doctor(conf, os.environ, as_json=json):
        raise typer.Exit(1)
