"""A job file: the parameters of one run, in YAML without nesting.

::

    topic: orders          # a comment
    continuous: true
    topics:                # or [orders, refunds]
      - orders
      - refunds

Text may stand in single or double quotes. What is no such file is refused, not guessed at: a
quote that does not end, a key twice, anything nested.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from pulsark.jobs.job import UsageError

FILE_BYTES_MAX = 1 << 20

Value = str | list[str] | None
"""Text as it is written, without its quotes. ``None`` for nothing, ``~`` and ``null``."""

_key = re.compile(r"([A-Za-z_][\w-]*)\s*:(?:\s+(.*)|$)")
_item = re.compile(r"\s*-\s+(.*)")
_quoted = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^']|'')*')\s*(?:#.*)?$""")
_special = tuple("{}&*!|>%@`")


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
        raise UsageError(f"--config {path}: is no text in UTF-8") from None


def parse_job_file(text: str, path: str) -> dict[str, Value]:
    """The same of its text; ``path`` is for errors."""
    values: dict[str, Value] = {}
    listing = ""
    for number, line in enumerate(text.splitlines(), 1):
        place = f"{path}:{number}"
        if not line.strip() or line.lstrip().startswith("#") or line.rstrip() in ("---", "..."):
            continue
        item = _item.fullmatch(line)
        if item and listing:
            found = _scalar(item[1], place)
            kept = values[listing]
            values[listing] = [*(kept if isinstance(kept, list) else ()), found or ""]
            continue
        key = _key.fullmatch(line)
        if key is None:
            raise UsageError(f"{place}: write 'key: value', with nothing nested but lists")
        name, listing = key[1], ""
        if name in values:
            raise UsageError(f"{place}: {name} is there twice")
        written = (key[2] or "").strip()
        if written.startswith("["):
            values[name] = _inline(written, place)
        else:
            values[name] = _scalar(written, place)
            listing = name if values[name] is None and written in ("",) else ""
    return values


def _inline(written: str, place: str) -> list[str]:
    written = re.sub(r"\s#.*$", "", written).strip()
    if not written.endswith("]"):
        raise UsageError(f"{place}: a list ends with ] on its line")
    inside = written[1:-1].strip()
    pieces = re.findall(r"""\s*("(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^,]+)\s*(?:,|$)""", inside)
    return [_scalar(piece, place) or "" for piece in pieces]


def _scalar(written: str, place: str) -> str | None:
    written = written.strip()
    if written.startswith(("'", '"')):
        quoted = _quoted.fullmatch(written)
        if quoted is None:
            raise UsageError(f"{place}: the quote does not end, or something follows it")
        return _unquoted(quoted[1], place)
    plain = re.sub(r"(^|\s)#.*$", "", written).strip()
    if plain.startswith(_special) or plain.startswith("[") or re.search(r":(\s|$)", plain):
        raise UsageError(f"{place}: put {plain} into quotes, or leave out what is nested")
    return None if plain in ("", "~", "null") else plain


def _unquoted(text: str, place: str) -> str:
    if text.startswith("'"):
        return text[1:-1].replace("''", "'")
    try:
        return str(json.loads(text))
    except ValueError:
        raise UsageError(
            f'{place}: in double quotes, \\ begins one of \\" \\\\ \\n \\t \\uXXXX'
        ) from None
