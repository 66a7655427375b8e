"""The settings one by one: by name, as text, and what a text means."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pulsark.config.settings import Settings
from pulsark.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pulsark.config.spec import Spec

_TRUE, _FALSE = "true", "false"
NOT_SHOWN = "(not shown)"

_password = re.compile(
    r"((?:://[^/@\s:]*:)|(?:[?&;](?:password|passwd|secret|token|key)=))[^/@\s&;]+(@?)", re.I
)


def _is_path(location: str) -> bool:
    return location.strip().startswith(("file:", "/", "./"))


@dataclass(frozen=True, slots=True)
class SettingKey:
    """One field of ``Settings`` as ``pulsark config`` shows it."""

    name: str
    type: str
    default: object
    spec: Spec

    def shown(self, value: object) -> object:
        """Return a value for somebody to see: of a secret only where it is.

        Passwords in URLs are left out of every setting.
        """
        if isinstance(value, tuple):
            return tuple(map(self.shown, value))
        if not isinstance(value, str) or not value:
            return value
        if self.spec.secret and not all(map(_is_path, value.split(","))):
            return NOT_SHOWN
        return _password.sub(r"\1***\2", value)

    def shown_text(self, value: object) -> str:
        """Return ``shown`` in the spelling of a properties file."""
        return self.text(self.shown(value))

    def text(self, value: object) -> str:
        """A value in the spelling of a properties file."""
        if value is None:
            return ""
        if isinstance(value, bool):
            return _TRUE if value else _FALSE
        if isinstance(value, tuple):
            return ",".join(value)
        return str(value)

    def parse(self, text: str) -> object:
        """The value that a text means. Raises ``ConfigError`` naming the key and the cure.

        An empty text is the default, as in Pulsar's files, but for texts and lists, where it
        is the empty value unless the default is not empty, and where none is a value.
        """
        text = text.strip()
        if not text:
            return None if self.may_be_none else self.default
        match self.type:
            case "bool" | "bool | None":
                if text.lower() in (_TRUE, _FALSE):
                    return text.lower() == _TRUE
            case "int" | "int | None":
                if re.fullmatch("-?[0-9]{1,18}", text) and self._in_bounds(int(text)):
                    return int(text)
            case "float":
                if re.fullmatch(r"-?[0-9]{1,18}(\.[0-9]{0,18})?", text) and (
                    self._in_bounds(float(text))
                ):
                    return float(text)
            case "str":
                if self._is_choice(text):
                    return text
            case _:
                items = tuple(item.strip() for item in text.split(",") if item.strip())
                if all(map(self._is_choice, items)):
                    return items
        raise ConfigError(f"{self.name}={text[:200]}: {self.allowed()} is allowed")

    @property
    def may_be_none(self) -> bool:
        """Whether an empty text is a value of its own."""
        return self.type.endswith("| None")

    def _in_bounds(self, number: float) -> bool:
        low, high = self.spec.minimum, self.spec.maximum
        return (low is None or number >= low) and (high is None or number <= high)

    def _is_choice(self, text: str) -> bool:
        return not self.spec.choices or text in self.spec.choices

    def allowed(self) -> str:
        """The allowed values in words."""
        if self.type.startswith("bool"):
            return "true or false"
        if self.spec.choices:
            words = ", ".join(self.spec.choices)
            return f"a comma-separated list of {words}" if self.type != "str" else f"one of {words}"
        if self.type.startswith("int"):
            return f"a whole number {self._range()}".rstrip()
        if self.type == "float":
            return f"a number {self._range()}".rstrip()
        return "a text"

    def _range(self) -> str:
        low, high = self.spec.minimum, self.spec.maximum
        if high is None:
            return "" if low is None else f"from {low}"
        return f"from {low} to {high}"


def keys() -> Iterator[SettingKey]:
    """All settings, in the order in which they are declared; inherited ones are the last."""
    fields = dataclasses.fields(Settings)
    for field in sorted(fields, key=lambda field: field.name not in Settings.__annotations__):
        yield SettingKey(field.name, str(field.type), field.default, field.metadata["spec"])


def key_index() -> Mapping[str, SettingKey]:
    """All settings by name."""
    return {key.name: key for key in keys()}
