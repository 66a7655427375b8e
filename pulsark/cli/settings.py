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
    value = key.shown_text(getattr(loaded.settings, key.name))
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

All settings of a Pulsark process. Keys that Apache Pulsar's `broker.conf` has, too, have the same
names and defaults, so you can use your `broker.conf` as it is:
`pulsark standalone --conf broker.conf`.

A value comes from the first of these that sets it:

1. flags: `--data-dir`, `--bookies`, `--brokers`, `--host` (`bindAddress`), `--broker-port`,
   `--web-port`, `--flight-port`, and `--set KEY=VALUE` for every key;
2. the environment: `PULSARK_<key>`, for example `PULSARK_brokerServicePort=6651`;
3. the properties file of `--conf`, in the syntax of Java's `.properties`;
4. the default.

`pulsark config` prints this list with the current values (`--json` for programs). An empty value
means the default, whatever a later one of these sources says. The process warns about an unknown
key and names the nearest known one. It also warns about a key of Pulsar's that has no effect here,
unless the value is Pulsar's default. An invalid value stops the process with an error that names
the key, the value and what is allowed.

A standalone listens on this machine only. To serve other machines, it needs
`authenticationEnabled`, or `--insecure`, which lets everyone who reaches its ports do everything;
set `advertisedAddress`, too. The HTTP port refuses requests that a web page may have made a browser
send (403): if `Host` is neither an IP address nor a known name, if `Origin` is another host, or if
`Sec-Fetch-Site` is `cross-site`. `webServiceAllowedHosts` lists more names.

The quorums of a standalone follow from `--bookies` unless a source sets them: 1 bookie gives
ensemble, write and ack quorum 1/1/1, 2 give 2/2/2, 3 or more give 3/3/2.

Settings marked as dynamic can be changed while brokers run, for all of them at once:
`pulsark brokers update-dynamic-config --config maxTenants --value 500`. The metadata store keeps
such a value, which overrides the sources above; `delete-dynamic-config` removes it.

For its own calls, the command line gets the broker's addresses from `--service-url` and
`--admin-url`, or from `PULSARK_SERVICE_URL` and `PULSARK_ADMIN_URL`. Options for the login come
before the command: `pulsark --auth-plugin token --auth-params file:///PATH topics list`; the
environment has `PULSARK_AUTH_PLUGIN` and `PULSARK_AUTH_PARAMS`, or only `PULSARK_TOKEN_FILE` for
the file of a token. `--tls-trust-cert-path` or `PULSARK_TLS_TRUST_CERTS` names the CAs of a broker
over TLS.

| Key | Default | Unit | Meaning |
|---|---|---|---|
{rows}
"""
