"""The result of a check, as text of 80 columns and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import NamedTuple

from pulsark.cli.terminal.output import print_json

COLUMNS = 80

OK, WARNING, FAILURE = "ok", "warning", "failure"


class Finding(NamedTuple):
    """What was looked at, how it is, and what to do next (empty if nothing)."""

    check: str
    status: str
    found: str
    todo: str = ""


def restoring(data_dir: str) -> str:
    """How to put a backup in the place of a data directory."""
    return f"pulsark restore BACKUP --data-dir {data_dir} (move the one there away first)"


def ways_out(data_dir: str) -> str:
    """What to do about a metadata store that does not belong to its bookies."""
    return (
        f"{restoring(data_dir)}\n"
        f"pulsark standalone --data-dir {data_dir} --adopt (once: what the store does not know "
        "stays where it is, and no client gets it)"
    )


def shown(finding: Finding) -> str:
    """A finding in lines of 80 characters; a command in ``todo`` has a line of its own.

    A word that is longer overflows: a path or a command can be copied.
    """
    head = f"{finding.status:<8} {finding.check:<10} "
    indent = " " * len(head)
    lines = _wrapped(finding.found, head, indent)
    for todo in finding.todo.splitlines():
        lines += _wrapped(todo, f"{indent}-> ", f"{indent}   ")
    return "\n".join(lines)


def _wrapped(text: str, first: str, then: str) -> list[str]:
    return textwrap.wrap(
        text,
        COLUMNS,
        initial_indent=first,
        subsequent_indent=then,
        break_long_words=False,
        break_on_hyphens=False,
    )


def print_findings(findings: Iterable[Finding], conclusion: tuple[str, str], as_json: bool) -> bool:
    """Print each as it comes; whether none of them is a failure.

    The last line is the first text of ``conclusion``, or the second one and what has failed.
    """
    seen = []
    for each in findings:
        seen.append(each)
        if not as_json:
            print(shown(each), flush=True)
    failed = list(dict.fromkeys(each.check for each in seen if each.status == FAILURE))
    if as_json:
        print_json([each._asdict() for each in seen])
    else:
        print(f"{conclusion[1]}: {', '.join(failed)}." if failed else conclusion[0])
    return not failed
