"""A consumer that speaks the protocol, so that it sees each ACK_RESPONSE."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count

from pulsark.wire import pulsar_pb2 as pb
from tests.support.history import Delivery, Id, Subscription
from tests.support.wire_client import Closed, Refused, WireClient
from tests.support.wire_frames import Received

ACKED_TOGETHER = 50


class Acknowledger(threading.Thread):
    """Acknowledges every second message, or all up to each, over one connection after the other."""

    def __init__(
        self, port: Callable[[], int], topic: str, partition: int, *, cumulative: bool
    ) -> None:
        """``port()`` is that of the broker that has the topic, as far as is known, or raises."""
        kind = "prefix" if cumulative else "holes"
        super().__init__(name=kind, daemon=True)
        self._port = port
        self._topic = topic
        self._partition = partition
        self._cumulative = cumulative
        self._ending = threading.Event()
        self._sessions = count(1)
        self.seen = Subscription(kind)
        self.entries: set[tuple[int, int]] = set()
        self.refusals: list[str] = []
        """What was answered to acks that failed."""
        self.error: BaseException | None = None
        self._session()  # the subscription exists before the first message

    def has_all(self, entries: set[tuple[int, int]]) -> bool:
        """Whether every one of the entries was delivered. Raises what ended the thread."""
        if self.error is not None:
            raise self.error
        return self.entries >= entries

    @property
    def is_cumulative(self) -> bool:
        """Whether it acknowledges all up to a message."""
        return self._cumulative

    def stop(self) -> None:
        """Let it end."""
        self._ending.set()

    def finish(self) -> None:
        """End it; raises what ended the thread before."""
        self.stop()
        self.join(30)
        self.has_all(set())

    def run(self) -> None:
        try:
            while not self._ending.is_set():
                self._session()
        except BaseException as error:  # handed to the test, which raises it
            self.error = error

    def _session(self) -> None:
        """One connection, until the broker is killed; the first only subscribes."""
        with suppress(Closed, Refused, OSError):
            with WireClient(self._port(), timeout=10) as client:
                shared, failover = pb.CommandSubscribe.Shared, pb.CommandSubscribe.Failover
                kind = failover if self._cumulative else shared
                client.subscribe(self._topic, self.name, kind)
                if self.is_alive():
                    self._consume(client, next(self._sessions))
            return
        time.sleep(0.05)

    def _consume(self, client: WireClient, session: int) -> None:
        pending: dict[int, list[Id]] = {}
        while not self._ending.is_set():
            batch: list[Id] = []
            received: Received | None
            try:
                received = client.message(timeout=0.2)
            except TimeoutError:
                if client.waiting(pb.BaseCommand.CLOSE_CONSUMER) is not None:
                    return  # the topic has moved
                self._take_responses(client, pending, session)
                continue
            while received is not None:
                batch.append(self._record(received, session))
                client.flow(received.metadata.num_messages_in_batch)
                received = client.waiting_message() if len(batch) < ACKED_TOGETHER else None
            self._acknowledge(client, batch, pending)
            self._take_responses(client, pending, session)

    def _record(self, received: Received, session: int) -> Id:
        message_id = received.message.message_id
        id_ = Id(self._partition, message_id.ledgerId, message_id.entryId)
        self.seen.deliveries.append(Delivery(session, id_))
        self.entries.add((id_.ledger_id, id_.entry_id))
        return id_

    def _acknowledge(
        self, client: WireClient, batch: list[Id], pending: dict[int, list[Id]]
    ) -> None:
        chosen = batch[-1:] if self._cumulative else [id_ for id_ in batch if id_.entry_id % 2]
        if chosen:
            positions = [(id_.ledger_id, id_.entry_id) for id_ in chosen]
            request_id = client.begin_ack(*positions, cumulative=self._cumulative)
            pending[request_id] = chosen

    def _take_responses(
        self, client: WireClient, pending: dict[int, list[Id]], session: int
    ) -> None:
        while (answer := client.waiting(pb.BaseCommand.ACK_RESPONSE)) is not None:
            response = answer.ackResponse
            chosen = pending.pop(response.request_id)
            if response.HasField("error"):
                self.refusals.append(response.message)
                continue
            for id_ in chosen:
                if self._cumulative:
                    self.seen.confirmed_up_to.append((id_, session))
                else:
                    self.seen.confirmed[id_] = session
