"""Where settings come from: defaults < properties file < environment < flags.

A key that is not known is a warning that names the nearest known one, and so is a key that
Pulsar has and Pulsark does not act on: an operator's file works, and says what it does not do.
A bad value is a ``ConfigError`` with the key, the value and what is allowed.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pulsark.config.keys import SettingKey, key_index
from pulsark.config.settings import Settings
from pulsark.errors import ConfigError
from pulsark.limits import CONFIG_FILE_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

ENVIRONMENT_PREFIX = "PULSARK_"
_BASIC_CONF = "BASIC_CONF"
"""The file of users under the name that start scripts of Pulsar give it."""

_CLIENT_VARIABLES = frozenset(
    {
        "PULSARK_ADMIN_URL",
        "PULSARK_SERVICE_URL",
        "PULSARK_AUTH_PLUGIN",
        "PULSARK_AUTH_PARAMS",
        "PULSARK_TOKEN_FILE",
        "PULSARK_TLS_TRUST_CERTS",
        "PULSARK_IVY_DIR",
    }
)
"""Variables of the command line's own calls and of Spark's sessions; they are no settings."""

_BACKLOG_GB, _BACKLOG_BYTES = "backlogQuotaDefaultLimitGB", "backlogQuotaDefaultLimitBytes"


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """Settings, what is to be said about their sources, and the source of each key set."""

    settings: Settings
    warnings: tuple[str, ...]
    sources: Mapping[str, str]


def load_settings(
    *,
    file: str | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, str | int | bool] | None = None,
) -> LoadedSettings:
    """Merge the sources; a later one wins. Raises ``ConfigError``.

    ``flags`` maps keys to values in text or in their type; the caller leaves out what was not
    given.
    """
    merge = _Merge()
    variables = {
        name.removeprefix(ENVIRONMENT_PREFIX): value
        for name, value in sorted((environment or {}).items())
        if name.startswith(ENVIRONMENT_PREFIX) and name not in _CLIENT_VARIABLES
    }
    # As in Pulsar, where it is a system property, it is weaker than the setting.
    merge.take({"basicAuthConf": variables.pop(_BASIC_CONF, "")}, "environment")
    if file is not None:
        merge.take(parse_properties(_read(file)), file)
    merge.take(variables, "environment")
    merge.take({key: _text(value) for key, value in (flags or {}).items()}, "command line")
    return LoadedSettings(
        Settings(**merge.values),  # type: ignore[arg-type]
        tuple(merge.warnings),
        merge.sources,
    )


def for_standalone(loaded: LoadedSettings) -> LoadedSettings:
    """Fit the quorums to the number of embedded bookies.

    Quorums that are not set follow from ``bookies``: 1 gives 1/1/1, 2 gives 2/2/2, three and
    more give 3/3/2. What was set stays, but a copy cannot be where there is no bookie: values
    above the number of bookies come down to it, with a warning.
    """
    settings = loaded.settings
    count = settings.bookies
    size = min(count, 3)
    derived = {
        "managedLedgerDefaultEnsembleSize": size,
        "managedLedgerDefaultWriteQuorum": size,
        "managedLedgerDefaultAckQuorum": min(size, 2),
    }
    changes: dict[str, int] = {}
    warnings = list(loaded.warnings)
    explicit = [key for key in derived if key in loaded.sources]
    for key, value in derived.items():
        if not explicit:
            changes[key] = value
        elif (wanted := getattr(settings, key)) > count:
            changes[key] = count
            warnings.append(
                f"{key}={wanted}: this standalone has {count} "
                f"{'bookie' if count == 1 else 'bookies'}, using {count}; --bookies sets more"
            )
    return dataclasses.replace(
        loaded,
        settings=dataclasses.replace(settings, **changes),  # type: ignore[arg-type]
        warnings=tuple(warnings),
    )


def in_bytes(texts: Mapping[str, str]) -> Mapping[str, str]:
    """The older name of the limit of backlogs, which is in GiB, as the newer one, which wins."""
    text = texts.get(_BACKLOG_GB, "").strip()
    if not re.fullmatch("[0-9]{1,9}", text) or int(text) == 0:
        return texts
    rest = {name: value for name, value in texts.items() if name != _BACKLOG_GB}
    if not re.fullmatch("[0-9]+", rest.get(_BACKLOG_BYTES, "").strip()):
        rest[_BACKLOG_BYTES] = str(int(text) << 30)
    return rest


class _Merge:
    """Collects values of known keys, and what is to be said about the others."""

    def __init__(self) -> None:
        self.values: dict[str, object] = {}
        self.sources: dict[str, str] = {}
        self.warnings: list[str] = []
        self._keys: Mapping[str, SettingKey] = key_index()

    def take(self, texts: Mapping[str, str], source: str) -> None:
        quiet = 0
        for name, text in in_bytes(texts).items():
            key = self._keys.get(name)
            if key is None:
                quiet += self._foreign(name, text, source)
                continue
            try:
                value = key.parse(text)
            except ConfigError as error:
                raise ConfigError(f"{error} ({source})") from None
            if text.strip() or key.may_be_none:
                self.values[name] = value
                self.sources[name] = source
            else:  # the default, whatever an earlier source says
                self.values.pop(name, None)
                self.sources.pop(name, None)
            if key.spec.planned and value != key.default:
                self.warnings.append(f"{name}: not implemented yet, has no effect ({source})")
        if quiet:
            self.warnings.append(
                f"left at Pulsar's default and not used by Pulsark: "
                f"{quiet} {'key' if quiet == 1 else 'keys'} ({source})"
            )

    def _foreign(self, name: str, text: str, source: str) -> int:
        """Warn about a key that is not ours; 1 if it only repeats Pulsar's default."""
        # Imported here: most processes meet no foreign key.
        from pulsark.config.pulsar_keys import pulsar_default

        default = pulsar_default(name)
        if default is None:
            self.warnings.append(f"{name}: unknown key{self._suggestion(name)} ({source})")
        elif text.strip() in ("", default):
            return 1
        else:
            self.warnings.append(
                f"{name}: known in Pulsar, not implemented in Pulsark, has no effect ({source})"
            )
        return 0

    def _suggestion(self, name: str) -> str:
        from difflib import get_close_matches

        folded = {known.lower(): known for known in self._keys}
        squeezed = re.sub("[^a-z0-9]", "", name.lower())
        near = get_close_matches(squeezed, folded, n=1, cutoff=0.6)
        return f", did you mean {folded[near[0]]}?" if near else ""


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(CONFIG_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"--conf {path}: {error.strerror}") from error
    if len(data) > CONFIG_FILE_BYTES_MAX:
        raise ConfigError(f"--conf {path}: larger than {CONFIG_FILE_BYTES_MAX} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")  # the encoding of properties files before Java 9


def parse_properties(text: str) -> dict[str, str]:
    """Key and value pairs of Java's ``.properties`` syntax; the last value of a key wins."""
    pairs: dict[str, str] = {}
    for line in _logical_lines(text):
        end = 0
        while end < len(line) and line[end] not in "=: \t\f":
            end += 2 if line[end] == "\\" else 1
        rest = line[end:].lstrip(" \t\f")
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(" \t\f")
        pairs[_unescape(line[:end])] = _unescape(rest)
    return pairs


def _logical_lines(text: str) -> list[str]:
    """Lines without comments and blanks; a trailing odd backslash joins the next line."""
    lines: list[str] = []
    pending: str | None = None
    for raw in re.split("\r\n|\r|\n", text):
        line = raw.lstrip(" \t\f")
        if pending is None and (not line or line[0] in "#!"):
            continue
        line = (pending or "") + line
        pending = None
        if (len(line) - len(line.rstrip("\\"))) % 2:
            pending = line[:-1]
        else:
            lines.append(line)
    if pending:
        lines.append(pending)
    return lines


_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def _unescape(text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        code, letter = match.group(1), match.group(2)
        return chr(int(code, 16)) if code else _ESCAPES.get(letter, letter)

    return re.sub(r"\\(?:u([0-9a-fA-F]{4})|(.|$))", replace, text, flags=re.DOTALL)
