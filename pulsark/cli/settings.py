"""``pulsark config``: every setting, its value, unit and meaning."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

from pulsark.cli.terminal.output import print_json
from pulsark.config.dynamic import DYNAMIC
from pulsark.config.keys import SettingKey, keys
from pulsark.config.sources import LoadedSettings, load_settings

_WIDTH = 78


def show_settings(conf: str | None, *, as_json: bool, form: str) -> None:
    """Print all settings as a file and the environment make them; ``form`` is for documents."""
    if form:
        print({"markdown": markdown_page, "properties": properties_file}[form](), end="")
        return
    loaded = load_settings(file=conf, environment=os.environ)
    for warning in loaded.warnings:
        print(f"pulsark: warning: {warning}", file=sys.stderr)
    if as_json:
        print_json([_describe(key, loaded) for key in keys()])
        return
    for key in keys():
        print("\n".join(_paragraph(key, loaded)))


def _describe(key: SettingKey, loaded: LoadedSettings) -> dict[str, Any]:
    value = key.shown(getattr(loaded.settings, key.name))
    return {
        "key": key.name,
        "value": list(value) if isinstance(value, tuple) else value,
        "default": list(key.default) if isinstance(key.default, tuple) else key.default,
        "source": loaded.sources.get(key.name, "default"),
        "unit": key.spec.unit,
        "meaning": key.spec.meaning,
        "allowed": key.allowed(),
        "pulsark": key.spec.pulsark_only,
        "implemented": not key.spec.planned,
        "dynamic": key.name in DYNAMIC,
    }


def _paragraph(key: SettingKey, loaded: LoadedSettings) -> Iterator[str]:
    value = key.text(key.shown(getattr(loaded.settings, key.name)))
    amount = key.spec.unit if key.spec.unit in ("ms", "s", "min", "MB", "bytes") else ""
    yield f"{key.name}={value} {amount if value else ''}".rstrip()
    notes = [key.spec.meaning + "."]
    if key.name in loaded.sources:
        notes.append(f"Default: {key.text(key.default)}; set by {loaded.sources[key.name]}.")
    if key.spec.planned:
        notes.append("Not implemented yet.")
    yield from textwrap.wrap(
        " ".join(notes), _WIDTH, initial_indent="    ", subsequent_indent="    "
    )


def markdown_page() -> str:
    """`docs/configuration.md`, which a test keeps equal to the code."""
    rows = [
        f"| `{key.name}` | {_cell(key)} | {key.spec.unit or '-'} | {_meaning(key)} |"
        for key in keys()
    ]
    return _PAGE.format(rows="\n".join(rows))


def properties_file() -> str:
    """`conf/broker.conf`: every key at its default, with its meaning. A test keeps it equal."""
    blocks = [_HEAD]
    for key in keys():
        meaning = key.spec.meaning + (f" ({key.spec.unit})" if key.spec.unit else "")
        notes = textwrap.wrap(f"{meaning}. Allowed: {key.allowed()}.", _WIDTH)
        if key.spec.planned:
            notes.append("Not implemented yet.")
        comments = "\n".join(f"# {line}" for line in notes)
        blocks.append(f"{comments}\n{key.name}={key.text(key.default)}")
    return "\n\n".join(blocks) + "\n"


_HEAD = """\
# Every setting of Pulsark at its default. An empty value means the default.
# pulsark standalone --conf conf/broker.conf"""


def _cell(key: SettingKey) -> str:
    text = key.text(key.default)
    return f"`{text}`" if text else "(empty)"


def _meaning(key: SettingKey) -> str:
    notes = key.spec.meaning.replace("|", "\\|")
    if key.spec.choices:
        notes += f" (`{'`, `'.join(key.spec.choices)}`)"
    if key.spec.pulsark_only:
        notes += "; Pulsark only"
    if key.name in DYNAMIC:
        notes += "; dynamic"
    if key.spec.planned:
        notes += "; **not implemented yet**"
    return notes


_PAGE = """\
# Configuration

All settings of a Pulsark process. Names and defaults are those of Apache Pulsar's
`broker.conf` wherever it has such a key, so an operator's file can be used as it is:
`pulsark standalone --conf broker.conf`.

A value comes from the first of these that sets it:

1. flags: `--data-dir`, `--bookies`, `--brokers`, `--host` (`bindAddress`), `--broker-port`,
   `--web-port`, `--flight-port`, and `--set KEY=VALUE` for every key;
2. the environment: `PULSARK_<key>`, for example `PULSARK_brokerServicePort=6651`;
3. the properties file of `--conf`, in the syntax of Java's `.properties`;
4. the default.

`pulsark config` prints this list with the values that apply (`--json` for programs). An empty
value means the default. An unknown key is a warning that names the nearest known one. A
key of Pulsar's that has no effect here is a warning too, unless its value is Pulsar's default. A
bad value stops the process with the key, the value and what is allowed.

A standalone listens on this machine's own addresses. On others it starts only with
`authenticationEnabled`, or with `--insecure`, because everyone who reaches its ports can do
everything then; set `advertisedAddress`, too. So that a web page cannot make a browser use the
HTTP port, a request is refused (403) whose `Host` is neither an IP address nor a name that is
known here, whose `Origin` is another host's, or whose `Sec-Fetch-Site` is `cross-site`;
`webServiceAllowedHosts` lists more names.

The quorums of a standalone follow from `--bookies` unless a source sets them: 1 bookie gives
ensemble, write and ack quorum 1/1/1, 2 give 2/2/2, 3 or more give 3/3/2.

What is marked as dynamic can be changed while brokers run, for all of them at once:
`pulsark brokers update-dynamic-config --config maxTenants --value 500`. Such a value is in the
metadata store, and goes above the sources here; `delete-dynamic-config` takes it away.

Addresses for the command line's own calls are `--service-url` and `--admin-url`, or the
environment's `PULSARK_SERVICE_URL` and `PULSARK_ADMIN_URL`. How they log in stands before the
command: `pulsark --auth-plugin token --auth-params file:///PATH topics list`, or in
`PULSARK_AUTH_PLUGIN` and `PULSARK_AUTH_PARAMS`; `PULSARK_TOKEN_FILE` alone names the file of a
token. `--tls-trust-cert-path` or `PULSARK_TLS_TRUST_CERTS` names the CAs of a broker over TLS.

| Key | Default | Unit | Meaning |
|---|---|---|---|
{rows}
"""
