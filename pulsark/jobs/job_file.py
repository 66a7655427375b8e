"""A job file: the parameters of one run, in YAML whose values are texts and lists of texts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from pulsark.jobs.job import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

FILE_BYTES_MAX = 1 << 20

Value = str | list[str] | None
"""Text as it is written, without its quotes. ``None`` for nothing, ``~`` and ``null``."""


def read_job_file(path: str) -> Mapping[str, Value]:
    """The keys and values of a file; ``UsageError``."""
    try:
        data = Path(path).read_bytes()
        if len(data) > FILE_BYTES_MAX:
            raise UsageError(f"{path} has more than {FILE_BYTES_MAX} bytes")
        return parse_job_file(data.decode(), path)
    except OSError as e:
        raise UsageError(f"--config {path}: {e.strerror or e}") from None
    except UnicodeDecodeError:
        raise UsageError(f"--config {path}: not UTF-8 text") from None


def parse_job_file(text: str, path: str) -> dict[str, Value]:
    """The parameters in a job file's text; ``path`` is for errors."""
    try:
        # Nodes and no objects: they know their lines, a key that is there twice is seen, and a
        # topic that is called 007 or no stays a text.
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as e:
        line = e.problem_mark.line + 1 if e.problem_mark is not None else 1
        raise UsageError(f"{path}:{line}: not YAML: {e.problem}") from None
    except yaml.YAMLError as e:
        raise UsageError(f"{path}: not YAML: {e}") from None
    values: dict[str, Value] = {}
    if root is None:
        return values
    if not isinstance(root, yaml.MappingNode):
        raise UsageError(f"{_place(path, root)}: write 'key: value'")
    for key, node in root.value:
        name = _text(key, path)
        if name is None or name in values:
            what = f"{name} is there twice" if name else "the key has no name"
            raise UsageError(f"{_place(path, key)}: {what}")
        if isinstance(node, yaml.SequenceNode):
            values[name] = [_text(item, path) or "" for item in node.value]
        else:
            values[name] = _text(node, path)
    return values


def _text(node: Any, path: str) -> str | None:
    if not isinstance(node, yaml.ScalarNode):
        raise UsageError(f"{_place(path, node)}: write 'key: value', with nothing nested but lists")
    return None if node.tag == "tag:yaml.org,2002:null" else str(node.value)


def _place(path: str, node: Any) -> str:
    return f"{path}:{node.start_mark.line + 1}"
