"""Turns flags and a job file into a job's parameters.

A flag is a field's name with dashes: ``--service-url URL`` or ``--service-url=URL``, a switch
``--continuous`` or ``--no-continuous``, a list by giving the flag again. Flags override the
file, and the file overrides the environment.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from types import NoneType, UnionType
from typing import Any, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from pulsark.errors import near_miss
from pulsark.jobs.job import Help, UsageError
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
    flag: Help
    default: Any

    @property
    def spelled(self) -> str:
        """As it is written in flags."""
        return self.name.replace("_", "-")

    @property
    def required(self) -> bool:
        """Whether it must be given."""
        return self.default is MISSING

    @property
    def help(self) -> str:
        """What help says of it."""
        notes = []
        if self.required:
            notes.append("required")
        elif self.default not in (None, False, ()):
            notes.append(f"default {self.default}")
        if self.many:
            notes.append("may be given often")
        if self.flag.variable:
            notes.append(f"${self.flag.variable}")
        told = f" ({'; '.join(notes)})" if notes else ""
        return f"{self.flag.meaning}{told}".replace("%", "%%")

    def of_text(self, text: str, given: str) -> Any:
        """The value that a text means; ``given`` says where it stands."""
        try:
            return self.of_word(text)
        except argparse.ArgumentTypeError as error:
            raise UsageError(f"{given}: {error}") from None

    def of_word(self, text: str) -> Any:
        """A value from a flag; ``argparse`` adds the flag's name to errors."""
        if self.kind is bool:
            if text.lower() not in (*_YES, *_NO):
                raise argparse.ArgumentTypeError(f"{text} is neither true nor false")
            return text.lower() in _YES
        try:
            return self.kind(text)
        except ValueError:
            kind = "a whole number" if self.kind is int else "a number"
            raise argparse.ArgumentTypeError(f"{text} is not {kind}") from None

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
    found, unknown = _parser(parameters.values()).parse_known_args(words)
    for word in unknown:
        if not word.startswith("--"):
            raise UsageError(f"{word} belongs to no flag; flags begin with --")
        flag, known = word.partition("=")[0], [*parameters, FILE_FLAG, "help"]
        raise UsageError(f"the flag {flag} is unknown{near_miss(flag[2:], known, '--')}")
    given = vars(found)
    path = given.pop(FILE_FLAG, None)
    by_name = {parameter.name: parameter for parameter in parameters.values()}
    values = {}
    for name, value in given.items():
        parameter = by_name[name]
        if isinstance(value, list) and not parameter.many:
            if len(value) > 1:
                raise UsageError(f"--{parameter.spelled} is there twice")
            (value,) = value
        values[name] = tuple(value) if parameter.many else value
    return values, path


def usage(name: str, summary: str, kind: type[Any]) -> str:
    """The help of a job."""
    return _parser(parameters_of(kind), name, summary).format_help().rstrip()


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message.removeprefix("argument "))


def _parser(parameters: Iterable[Parameter], name: str = "", summary: str = "") -> _Parser:
    parser = _Parser(
        name, f"{name} [flags]", summary, add_help=False, allow_abbrev=False,
        argument_default=argparse.SUPPRESS, formatter_class=argparse.RawTextHelpFormatter,
    )  # fmt: skip
    for parameter in parameters:
        how: dict[str, Any] = {"action": argparse.BooleanOptionalAction}
        if parameter.kind is not bool:
            how = {"action": "append", "metavar": parameter.kind.__name__.upper()}
            how["type"] = parameter.of_word
        parser.add_argument(f"--{parameter.spelled}", help=parameter.help, **how)
    told = "a YAML file with the same keys; flags come before it"
    parser.add_argument(f"--{FILE_FLAG}", metavar="FILE", help=told)
    return parser
