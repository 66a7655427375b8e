"""The text of a script: blocks of commands, each with the output that they have. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

OUTPUT = "----"


class ScriptError(Exception):
    """A script says something that is not in the language."""


@dataclass(frozen=True, slots=True)
class Line:
    """One command: a verb, words, and options of the form ``name=value``."""

    text: str
    verb: str
    words: tuple[str, ...]
    options: dict[str, str]

    @classmethod
    def parse(cls, text: str) -> Line:
        verb, *rest = text.split()
        words = tuple(item for item in rest if "=" not in item)
        options = dict(item.split("=", 1) for item in rest if "=" in item)
        return cls(text, verb, words, options)


@dataclass(frozen=True, slots=True)
class Block:
    """Commands that are carried out one after the other, and what is seen meanwhile."""

    comments: tuple[str, ...]
    """Above it, as they are written."""
    lines: tuple[Line, ...]
    output: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Script:
    """A whole file. Its first paragraph is a comment: the rule that it shows, in a sentence."""

    heading: tuple[str, ...]
    blocks: tuple[Block, ...]

    @classmethod
    def parse(cls, text: str) -> Script:
        """Raises ``ScriptError``."""
        first, *rest = [part.splitlines() for part in text.strip("\n").split("\n\n")]
        if not all(line.startswith("# ") for line in first) or not first[-1].endswith("."):
            raise ScriptError("A script begins with a comment: one sentence and an empty line")
        return cls(tuple(first), tuple(_block(part) for part in rest))

    def with_outputs(self, outputs: Sequence[Sequence[str]]) -> Script:
        """The same commands with other outputs."""
        blocks = [
            replace(block, output=tuple(output))
            for block, output in zip(self.blocks, outputs, strict=True)
        ]
        return replace(self, blocks=tuple(blocks))

    def render(self) -> str:
        """The text of the file."""
        parts = [list(self.heading)]
        for block in self.blocks:
            commands = [line.text for line in block.lines]
            parts.append([*block.comments, *commands, OUTPUT, *block.output])
        return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _block(part: list[str]) -> Block:
    end = part.index(OUTPUT) if OUTPUT in part else len(part)
    comments = tuple(line for line in part[:end] if line.startswith("#"))
    commands = tuple(Line.parse(line) for line in part[:end] if not line.startswith("#"))
    if not commands:
        raise ScriptError(f"No command in: {part}")
    return Block(comments, commands, tuple(part[end + 1 :]))
