"""Connections as scripts see them: who asks, and what everybody hears."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from pulsark.wire import pulsar_pb2 as pb
from tests.scripts.messages import NO_ID, Messages
from tests.scripts.script import Line, ScriptError
from tests.scripts.words import SAID, refused
from tests.support.broker_clients import Client, Command
from tests.support.wire_frames import Received

_FIELDS = Command.DESCRIPTOR.fields_by_number
"""A command's type is the number of its field."""


def part_of(command: pb.BaseCommand) -> Any:
    """What a command says."""
    return getattr(command, _FIELDS[command.type].name)


@dataclass
class Sent:
    """A publish without an answer."""

    sequence_id: int
    names: list[str]
    batch: bool


@dataclass
class Actor:
    """A producer, a consumer, or somebody who only asks."""

    name: str
    link: Link
    number: int = 0
    opened_with: Line = field(default_factory=lambda: Line.parse("nobody"))
    """For when it comes again."""
    pending: list[Sent] = field(default_factory=list)
    next_sequence: int = 0


class Link:
    """One connection. What it hears becomes events: a head and a text, in the order of arrival."""

    def __init__(self, client: Client, messages: Messages) -> None:
        self.client = client
        self.frozen = False
        self.lost = False
        self.producers: dict[int, Actor] = {}
        self.consumers: dict[int, Actor] = {}
        self.events: list[tuple[str, str]] = []
        self.unanswered: set[int] = set()
        self._askers: dict[int, Actor] = {}
        self._ids = count(1)
        self._messages = messages

    def freeze(self) -> None:
        """It neither reads nor answers any more, as behind a cable that was pulled."""
        self.frozen = True

    def hang_up(self) -> None:
        self.lost = True
        self.client.hang_up()

    # -- asking ---

    def ask(self, actor: Actor, kind: int, **values: Any) -> int:
        """Send a command that is answered; its request id."""
        number = next(self._ids)
        self._askers[number] = actor
        self.unanswered.add(number)
        self.tell(kind, request_id=number, **values)
        return number

    def tell(self, kind: int, **values: Any) -> None:
        """Send a command. A value that can be called fills its field."""
        command = Command(type=kind)  # type: ignore[arg-type]
        part = part_of(command)
        part.SetInParent()
        for name, value in values.items():
            if callable(value):
                value(getattr(part, name))
            elif isinstance(value, list):
                for fill in value:
                    fill(getattr(part, name).add())
            else:
                setattr(part, name, value)
        self.client.send(command)

    # -- hearing ---

    def hear(self) -> None:
        """Take what has come."""
        if self.frozen or self.lost:
            return
        client = self.client
        client._read()
        answers, client.answers = client.answers, []
        deliveries, client._deliveries = iter(client._deliveries), []
        for command in answers:
            part = part_of(command)
            if command.type == Command.MESSAGE:
                self._delivered(next(deliveries))
            elif command.type in SAID:
                self._heard(SAID[command.type], part)
            elif command.type == Command.SEND_RECEIPT:
                self._receipt(part)
            elif command.type == Command.SEND_ERROR:
                self._send_error(part)
            elif command.type == Command.CLOSE_CONSUMER:
                self._closed(self.consumers[part.consumer_id])
            elif command.type == Command.CLOSE_PRODUCER:
                self._closed(self.producers[part.producer_id])
            elif command.type != Command.CONNECTED:
                raise ScriptError(f"No words for {Command.Type.Name(command.type)}")
        if client.transport.closed:
            self.lost = True
            self.events.append((f"{self._name()}: ", "disconnected by the broker"))

    def _name(self) -> str:
        actors = [*self.consumers.values(), *self.producers.values()]
        return ", ".join(actor.name for actor in actors) or "client"

    def _closed(self, actor: Actor) -> None:
        actor.pending.clear()  # a client sends them again when it has a producer again
        self.events.append((f"{actor.name}: ", "closed by the broker"))

    def _heard(self, said: Callable[[Any, Messages], str], part: Any) -> None:
        if "request_id" in part.DESCRIPTOR.fields_by_name:
            actor = self._askers[part.request_id]
            self.unanswered.discard(part.request_id)
        elif "consumer_id" in part.DESCRIPTOR.fields_by_name:
            actor = self.consumers[part.consumer_id]
        else:
            actor = Actor("client", self)
        self.events.append((f"{actor.name}: ", said(part, self._messages)))

    def _delivered(self, got: Received) -> None:
        actor = self.consumers[got.message.consumer_id]
        self.events.append((f"{actor.name} <- ", self._messages.delivery_text(got)))

    def _receipt(self, receipt: pb.CommandSendReceipt) -> None:
        actor = self.producers[receipt.producer_id]
        sent = self._answered(actor, receipt.sequence_id)
        self._messages.stored(sent.names, receipt.message_id, batch=sent.batch)
        text = f"[{' '.join(sent.names)}]" if sent.batch else sent.names[0]
        if receipt.message_id.ledgerId == NO_ID:
            note = "not stored again"
        else:
            note = self._messages.id_text(receipt.message_id)
        self.events.append((f"{actor.name} -> ", f"{text} ({note})"))

    def _send_error(self, error: pb.CommandSendError) -> None:
        actor = self.producers[error.producer_id]
        sent = self._answered(actor, error.sequence_id)
        self.events.append((f"{actor.name}: ", f"{sent.names[0]} {refused(error.error)}"))

    def _answered(self, actor: Actor, sequence_id: int) -> Sent:
        sent = next(one for one in actor.pending if one.sequence_id == sequence_id)
        actor.pending.remove(sent)
        return sent
