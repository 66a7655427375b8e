"""``pulsark audit``: who did what, from the topic of the audit."""

from __future__ import annotations

import json
import re
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pulsark.cli.admin.messages import connected_client
from pulsark.cli.terminal.arguments import DEFAULT_SERVICE_URL, Json, ServiceUrl
from pulsark.cli.terminal.client_log import ClientLog
from pulsark.cli.terminal.output import print_json, print_json_line, print_table
from pulsark.log_format import escaped
from pulsark.metadata.resources import AUDIT_TOPIC
from pulsark.runtime import SystemClock

if TYPE_CHECKING:
    from collections.abc import Iterator

audit = typer.Typer(
    help="Who did what: changes, denials, failed logins. For super users.", no_args_is_help=True
)

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_POLL_MILLIS = 250
_COLUMNS = [
    ("Time (UTC)", False),
    ("Who", False),
    ("What", False),
    ("On", False),
    ("Result", False),
]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which events are shown; what is empty does not matter."""

    role: str = ""
    resource: str = ""
    denied: bool = False

    def matches(self, event: dict[str, Any]) -> bool:
        """Whether this one is."""
        actor = event.get("actor") or {}
        name = (event.get("resource") or {}).get("name") or ""
        return (
            (not self.role or self.role in (actor.get("role"), actor.get("original_role")))
            and self.resource in name
            and (not self.denied or is_denied(event))
        )


def is_denied(event: dict[str, Any]) -> bool:
    """Whether somebody was denied something, or did not get in."""
    authz, http = event.get("authz") or {}, event.get("http") or {}
    return (
        authz.get("granted") is False
        or http.get("status") in (401, 403)
        or (event["class_uid"] == 3002 and event["status_id"] == 2)
    )


@audit.command("show")
def show(
    since: Annotated[
        str, typer.Option(metavar="TIME", help="How far back, as 30m, 12h or 7d; all: everything.")
    ] = "1d",
    role: Annotated[str, typer.Option(help="Only what this role did, or somebody for it.")] = "",
    resource: Annotated[
        str,
        typer.Option(metavar="TEXT", help="Only on topics or namespaces with this in the name."),
    ] = "",
    denied: Annotated[
        bool, typer.Option("--denied", help="Only denials and failed logins.")
    ] = False,
    number: Annotated[
        int, typer.Option("--number", "-n", min=1, max=100_000, help="The newest, so many at most.")
    ] = 50,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with new ones, until Ctrl-C.")
    ] = False,
    service_url: ServiceUrl = DEFAULT_SERVICE_URL,
    as_json: Json = False,
) -> None:
    """Show the newest events, oldest first."""
    wanted, seconds = Wanted(role, resource, denied), seconds_of(since)
    with connected_client(service_url, ClientLog()) as (pulsar, client):
        reader = _reader(pulsar, client, seconds)
        _print(deque(filter(wanted.matches, _stored(reader)), number), as_json=as_json)
        try:
            while follow:
                event = _next(pulsar, reader)
                if event is not None and wanted.matches(event):
                    _print([event], as_json=as_json, heading=False)
        except KeyboardInterrupt:
            pass  # the way to end a command that has no end
        reader.close()


@audit.command("verify")
def verify(
    digest: Annotated[
        str,
        typer.Option(metavar="HEX", help="A digest from the broker's log, which must be there."),
    ] = "",
    service_url: ServiceUrl = DEFAULT_SERVICE_URL,
    as_json: Json = False,
) -> None:
    """Say whether events were changed or removed. Exit code 1: they were."""
    from pulsark.security.audit.chain import ChainFault, Checker

    checker, findings = Checker(digest.strip().lower()), list[ChainFault]()
    with connected_client(service_url, ClientLog()) as (pulsar, client):
        reader = _reader(pulsar, client, None)
        for event in _stored(reader):
            findings += checker.add(event)
        reader.close()
    findings += checker.end()
    heads = {broker: head._asdict() for broker, head in checker.heads.items()}
    if as_json:
        problems = [finding._asdict() for finding in findings]
        print_json(
            {
                "records": checker.records,
                "lost": checker.lost,
                "startsWithoutStop": checker.starts_without_stop,
                "heads": heads,
                "problems": problems,
            }
        )
    else:
        for finding in findings[:20]:
            whose = f"record {finding.seq} of {escaped(finding.broker)}: "
            print(f"{whose if finding.broker else ''}{finding.problem}")
        if len(findings) > 20:
            print(f"and {len(findings) - 20} more")
        for broker, head in checker.heads.items():
            print(f"{escaped(broker)}: record {head.seq} has the digest\n  {head.digest}")
        if checker.starts_without_stop:
            print(
                f"{checker.starts_without_stop} starts without a stop before: a broker was killed, "
                "and the events of its last moment may be missing"
            )
        print(f"{checker.records} events, {checker.lost} lost, {len(findings)} problems")
    if findings:
        raise typer.Exit(1)


def seconds_of(text: str) -> float | None:
    """How long a time is; ``None`` for all there is."""
    if text == "all":
        return None
    found = re.fullmatch("([0-9]{1,9})([smhd])", text)
    if found is None:
        raise typer.BadParameter("write 30m, 12h, 7d or all", param_hint="--since")
    return int(found[1]) * _SECONDS[found[2]]


def _reader(pulsar: Any, client: Any, seconds: float | None) -> Any:
    if seconds is None:
        return client.create_reader(AUDIT_TOPIC, pulsar.MessageId.earliest)
    # From the end, so that nothing is read before the broker has found the time.
    reader = client.create_reader(AUDIT_TOPIC, pulsar.MessageId.latest)
    reader.seek(max(SystemClock().now_ms() - int(seconds * 1000), 1))
    return reader


def _stored(reader: Any) -> Iterator[dict[str, Any]]:
    while reader.has_message_available():
        event = _event(reader.read_next())
        if event is not None:
            yield event


def _next(pulsar: Any, reader: Any) -> dict[str, Any] | None:
    try:
        return _event(reader.read_next(timeout_millis=_POLL_MILLIS))
    except pulsar.Timeout:
        return None


def _event(message: Any) -> dict[str, Any] | None:
    try:
        found = json.loads(message.data())
    except ValueError:
        return None
    return found if isinstance(found, dict) and "class_uid" in found else None


def _print(events: Any, *, as_json: bool, heading: bool = True) -> None:
    if as_json:
        for event in events:
            print_json_line(event)
    elif heading:
        print_table(_COLUMNS, map(row, events))
    else:
        for event in events:
            print("  ".join(row(event)), flush=True)


def row(event: dict[str, Any]) -> tuple[str, ...]:
    """An event for people: when, who, what, on what, and what came of it."""
    at = datetime.fromtimestamp(event["time"] / 1000, UTC).strftime("%m-%d %H:%M:%S")
    resource = event.get("resource") or {}
    name = (resource.get("name") or "").removeprefix("persistent://")
    if resource.get("subscription"):
        name += f" ({resource['subscription']})"
    return at, *map(escaped, (_who(event), _what(event), name, _result(event)))


def _who(event: dict[str, Any]) -> str:
    actor = event.get("actor") or {}
    role, original = actor.get("role"), actor.get("original_role")
    if role:
        return f"{original} via {role}" if original else str(role)
    return (event.get("src_endpoint") or {}).get("ip") or event.get("broker") or ""


def _what(event: dict[str, Any]) -> str:
    authz, parameters = event.get("authz"), event.get("parameters") or {}
    words = [authz["operation"] if event["via"] == "rest" and authz else event["operation"]]
    return " ".join([*words, *(f"{key}={value}" for key, value in parameters.items())])


def _result(event: dict[str, Any]) -> str:
    authz, http = event.get("authz") or {}, event.get("http") or {}
    if authz.get("granted") is False:
        found = f"denied: {authz.get('rule')}"
    elif event["status_id"] == 1:
        found = "ok"
    else:
        status = http.get("status")
        found = f"failed: {status}" if status else f"failed: {event.get('status_detail') or ''}"
    more = event.get("suppressed")
    return f"{found}, {more} more" if more else found
