"""What one connection published above a rate, and its wait for that.

Every publish is taken. Afterwards its tokens are, and while a rate is overdrawn the connection
is not read: in each of the lines that are concerned, until all of them have let it go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulsark.dispatch.model.interfaces import AnyTopic
    from pulsark.dispatch.publish_rates import PublishRates
    from pulsark.rates.throttle import Throttle


class PublishHold:
    """The hold of one connection, created at its first publish to which a rate applies."""

    def __init__(self, may_publish: Callable[[], None], rates: PublishRates) -> None:
        """``may_publish`` is called when the connection may be read again."""
        self._may_publish = may_publish
        self._rates = rates
        self._overdrawn: dict[Throttle, None] = {}
        """By what it published since it was read last."""
        self._waits = False

    def take(self, topic: AnyTopic, messages: int, size: int) -> None:
        """A publish to a topic."""
        for throttle in self._rates.of(topic):
            if throttle.take(messages, size):
                self._wait_for(throttle)

    def join(self, topic: AnyTopic) -> None:
        """A producer has come: it does not go before those who wait for what is owed already.

        It does if that is little, and its client has more to ask for before it publishes. But a
        client that comes back each time that it is held shall not publish more than others.
        """
        for throttle in self._rates.of(topic):
            if throttle.owes_much:
                self._wait_for(throttle)

    def _wait_for(self, throttle: Throttle) -> None:
        if throttle not in self._overdrawn:
            self._overdrawn[throttle] = None
            if self._waits:
                throttle.wait_in(self)

    def is_due(self) -> bool:
        """Whether it has to wait; what it overdrew may be made up for already."""
        if self._overdrawn:
            self._overdrawn = {t: None for t in self._overdrawn if t.is_overdrawn}
        return bool(self._overdrawn)

    def begin(self) -> None:
        """Wait."""
        self._waits = True
        self._rates.held += 1
        for throttle in self._overdrawn:
            throttle.wait_in(self)

    def end(self) -> None:
        """Wait no longer. What is still overdrawn is looked at when this turn is over."""
        self._waits = False
        self._rates.held -= 1
        for throttle in self._overdrawn:
            throttle.leave(self)

    def let_go(self, throttle: Throttle) -> None:
        """One of the lines lets it go."""
        self._overdrawn.pop(throttle, None)
        if not self._overdrawn:
            self._may_publish()

    def waited_enough(self) -> None:
        """It has waited as long as anybody may: it has a turn now, whatever is owed."""
        for throttle in self._overdrawn:
            throttle.leave(self)
        self._overdrawn.clear()
        self._may_publish()
