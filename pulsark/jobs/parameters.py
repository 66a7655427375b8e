"""From flags and a job file to a job's parameters.

A flag is a field's name with dashes: ``--service-url URL`` or ``--service-url=URL``, a switch
``--continuous`` or ``--no-continuous``, a list by giving the flag again. Flags come before what
the file says, and the file before the environment.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from pulsark.errors import near_miss
from pulsark.jobs.job import Flag, UsageError
from pulsark.jobs.job_file import Value, read_job_file

T = TypeVar("T")

FILE_FLAG = "config"
_YES, _NO = ("true", "yes", "on"), ("false", "no", "off")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One field of a job's parameters."""

    name: str
    kind: type
    """str, int, float or bool."""
    many: bool
    flag: Flag
    default: Any

    @property
    def spelled(self) -> str:
        """As it is written in flags."""
        return self.name.replace("_", "-")

    @property
    def required(self) -> bool:
        """Whether it must be given."""
        return self.default is MISSING

    def of_text(self, text: str, given: str) -> Any:
        """The value that a text means; ``given`` says where it stands."""
        if self.kind is bool:
            word = text.lower()
            if word not in (*_YES, *_NO):
                raise UsageError(f"{given}: {text} is neither true nor false")
            return word in _YES
        try:
            return self.kind(text)
        except ValueError:
            kind = "a whole number" if self.kind is int else "a number"
            raise UsageError(f"{given}: {text} is not {kind}") from None

    def of_file(self, value: Value, path: str) -> Any:
        """The value that a job file means."""
        given = f"{path}: {self.name}"
        if self.many:
            texts = value if isinstance(value, list) else [] if value is None else [value]
            return tuple(self.of_text(text, given) for text in texts)
        if isinstance(value, list):
            raise UsageError(f"{given} is one value, not a list")
        return None if value is None else self.of_text(value, given)


def parameters_of(kind: type[Any]) -> list[Parameter]:
    """The parameters of a job, those that must be given first."""
    hints = get_type_hints(kind, include_extras=True)
    found = [_parameter(field, hints[field.name]) for field in dataclasses.fields(kind)]
    return sorted(found, key=lambda parameter: not parameter.required)


def _parameter(field: dataclasses.Field[Any], hint: Any) -> Parameter:
    annotated, flag = get_args(hint)
    many = get_origin(annotated) is tuple
    if many:
        annotated = get_args(annotated)[0]
    elif isinstance(annotated, UnionType):
        (annotated,) = (kind for kind in get_args(annotated) if kind is not NoneType)
    return Parameter(field.name, annotated, many, flag, field.default)


def parse(kind: type[T], words: Sequence[str], environment: Mapping[str, str] | None = None) -> T:
    """The parameters that the words of a command line mean; ``UsageError``."""
    parameters = {parameter.spelled: parameter for parameter in parameters_of(kind)}
    given, path = _flags(words, parameters)
    values: dict[str, Any] = {}
    for parameter in parameters.values():
        text = (environment or {}).get(parameter.flag.variable, "")
        if text:
            values[parameter.name] = parameter.of_text(text, f"${parameter.flag.variable}")
    if path is not None:
        values |= _of_file(path, parameters)
    values |= given
    missing = [p.spelled for p in parameters.values() if p.required and p.name not in values]
    if missing:
        raise UsageError(f"--{missing[0]} is missing: {parameters[missing[0]].flag.meaning}")
    return kind(**values)


def _of_file(path: str, parameters: Mapping[str, Parameter]) -> dict[str, Any]:
    values = {}
    for key, value in read_job_file(path).items():
        parameter = parameters.get(key.replace("_", "-"))
        if parameter is None:
            names = [p.name for p in parameters.values()]
            raise UsageError(f"{path}: the key {key} is unknown{near_miss(key, names)}")
        read = parameter.of_file(value, path)
        if read is not None:
            values[parameter.name] = read
    return values


def _flags(
    words: Sequence[str], parameters: Mapping[str, Parameter]
) -> tuple[dict[str, Any], str | None]:
    values: dict[str, Any] = {}
    path = None
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise UsageError(f"{word} belongs to no flag; flags begin with --")
        name, equals, text = word[2:].partition("=")
        parameter = parameters.get(name)
        if parameter is not None and parameter.kind is bool:
            values[parameter.name] = parameter.of_text(text if equals else "true", word)
            continue
        switch = parameters.get(name.removeprefix("no-"))
        if parameter is None and switch is not None and switch.kind is bool and not equals:
            values[switch.name] = False
            continue
        if parameter is None and name != FILE_FLAG:
            known = [*parameters, FILE_FLAG, "help"]
            raise UsageError(f"the flag --{name} is unknown{near_miss(name, known, '--')}")
        if not equals:
            if not rest:
                raise UsageError(f"--{name} needs a value")
            text = rest.pop(0)
        if parameter is None:
            path = text
        elif parameter.many:
            value = parameter.of_text(text, f"--{name}")
            values[parameter.name] = (*values.get(parameter.name, ()), value)
        elif parameter.name in values:
            raise UsageError(f"--{name} is there twice")
        else:
            values[parameter.name] = parameter.of_text(text, f"--{name}")
    return values, path


def usage(name: str, summary: str, kind: type[Any]) -> str:
    """The help of a job."""
    rows = []
    for parameter in parameters_of(kind):
        value = "" if parameter.kind is bool else f" {parameter.kind.__name__.upper()}"
        notes = []
        if parameter.required:
            notes.append("required")
        elif parameter.default not in (None, False, ()):
            notes.append(f"default {parameter.default}")
        if parameter.many:
            notes.append("may be given often")
        if parameter.flag.variable:
            notes.append(f"${parameter.flag.variable}")
        told = f" ({'; '.join(notes)})" if notes else ""
        rows.append((f"--{parameter.spelled}{value}", f"{parameter.flag.meaning}{told}"))
    rows.append((f"--{FILE_FLAG} FILE", "a YAML file with the same keys; flags come before it"))
    lines = [f"usage: {name} [flags]", "", summary, ""]
    for flag, meaning in rows:
        lines.append(f"  {flag}")
        lines.append(f"      {meaning}")
    return "\n".join(lines)
