"""Any broker answers about any topic: it sends the request on to the one that serves it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from pulsark.dispatch.peers.whereabouts import Peer
from pulsark.metadata.paths import BROKER_SECRET
from pulsark.security.broker_calls import HEADER, BrokerCall, SignedCall, digest, sealed
from tests.support.admin_api import NAMESPACE, AdminApi, Answer
from tests.support.two_brokers import TwoBrokers

TOPIC = "persistent://public/default/t"


@pytest.fixture
def both() -> Iterator[TwoBrokers]:
    found = TwoBrokers()
    yield found
    found.close()


def test_a_topic_that_another_broker_serves_is_asked_for_there(both: TwoBrokers) -> None:
    both.topic(TOPIC, both.b)
    answers = [both.call(node, "GET", f"{NAMESPACE}/t/internalStats") for node in both.nodes]
    assert [answer.status for answer in answers] == [200, 200]
    assert answers[0].json == answers[1].json
    assert not both.is_loaded(TOPIC, both.a)


def test_what_is_changed_is_changed_at_the_owner(both: TwoBrokers) -> None:
    topic = both.topic(TOPIC, both.b)
    body = {"ledgerId": -1, "entryId": -1, "properties": {"a": "b"}}
    made = both.call(both.a, "PUT", f"{NAMESPACE}/t/subscription/s", body)
    assert (made.status, made.body) == (204, b"")
    assert dict(topic.subscriptions["s"].properties.given) == {"a": "b"}
    again = both.call(both.a, "PUT", f"{NAMESPACE}/t/subscription/s")
    assert (again.status, again.reason) == (409, "Subscription already exists for topic")


def test_a_topic_that_nobody_serves_is_given_to_one_of_them(both: TwoBrokers) -> None:
    assert both.call(both.a, "PUT", f"{NAMESPACE}/t").status == 204
    assert [both.is_loaded(TOPIC, node) for node in both.nodes].count(True) == 1
    for node in both.nodes:
        assert both.call(node, "GET", f"{NAMESPACE}/t/stats").status == 200
    assert [both.is_loaded(TOPIC, node) for node in both.nodes].count(True) == 1


def test_what_is_missing_is_missing_everywhere(both: TwoBrokers) -> None:
    both.give(TOPIC, both.b)
    for target in ("/persistent/public/default/t/stats", "/persistent/no/where/t/stats"):
        answers = [both.call(node, "GET", f"/admin/v2{target}") for node in both.nodes]
        assert [answer.status for answer in answers] == [404, 404]
        assert answers[0].json == answers[1].json


def test_a_name_goes_as_it_came(both: TwoBrokers) -> None:
    topic = both.topic("persistent://public/default/a b?#+\u00e9", both.b)
    path = f"{NAMESPACE}/a%20b%3F%23%2B%C3%A9"
    made = both.call(both.a, "PUT", f"{path}/subscription/x%252Fy?replicated=true&x=%20")
    assert made.status == 204
    assert list(topic.subscriptions) == ["x/y"]
    assert topic.subscriptions["x/y"].properties.replicated


def test_status_type_and_headers_of_the_owner_are_kept(both: TwoBrokers) -> None:
    both.topic(TOPIC, both.b)
    at_a, at_b = (both.call(node, "GET", f"{NAMESPACE}/t/examinemessage") for node in both.nodes)
    assert at_a == at_b
    assert at_a.status == 412


def test_a_body_that_is_too_large_is_refused_by_the_first(both: TwoBrokers) -> None:
    both.topic(TOPIC, both.b)
    raw = b"[" + b" " * (1 << 20) + b"]"
    refused = both.call(both.a, "PUT", f"{NAMESPACE}/t/properties", raw=raw)
    assert refused.status == 413
    whole = b"{" + b" " * ((1 << 20) - 2) + b"}"
    assert both.call(both.a, "PUT", f"{NAMESPACE}/t/properties", raw=whole).status == 204


def test_an_owner_that_is_gone_is_looked_up_once_more(both: TwoBrokers) -> None:
    both.topic(TOPIC, both.b)
    both.run(both.b.server.close())
    asked = both.a.knows.asked
    answer = both.call(both.a, "GET", f"{NAMESPACE}/t/stats")
    assert answer.status == 503
    assert answer.headers["retry-after"] == "1"
    assert both.b.peer.broker_id in answer.reason
    assert "Try again in a moment" in answer.reason
    assert both.a.knows.asked == asked + 2


def test_a_topic_that_moves_here_meanwhile_is_served_here(both: TwoBrokers) -> None:
    gone = Peer("127.0.0.1:1", "http://127.0.0.1:1")
    both.topic(TOPIC, both.a)

    both.a.knows.forced[TOPIC] = [gone, None]
    body = {"ledgerId": -1, "entryId": -1}
    assert both.call(both.a, "PUT", f"{NAMESPACE}/t/subscription/s", body).status == 204
    assert list(both.topic(TOPIC, both.a).subscriptions) == ["s"]


def test_two_brokers_that_each_think_the_other_is_the_owner_do_not_ask_for_ever(
    both: TwoBrokers,
) -> None:
    both.a.knows.forced[TOPIC] = [both.b.peer]
    both.b.knows.forced[TOPIC] = [both.a.peer]
    answer = both.call(both.a, "GET", f"{NAMESPACE}/t/stats")
    assert answer.status == 503
    assert "its bundle is moving" in answer.reason
    assert (both.a.knows.asked, both.b.knows.asked) == (2, 2)
    assert not both.is_loaded(TOPIC, both.a)
    assert not both.is_loaded(TOPIC, both.b)


def test_an_owner_that_says_nothing_is_not_waited_for_for_ever() -> None:
    found = TwoBrokers(adminForwardTimeoutSeconds=1)
    try:
        silent = found.run(asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0))
        port = silent.sockets[0].getsockname()[1]
        found.a.knows.forced[TOPIC] = [Peer(f"127.0.0.1:{port}", f"http://127.0.0.1:{port}")]
        answer = found.call(found.a, "PUT", f"{NAMESPACE}/t/unload")
        assert answer.status == 504
        assert "It may have been done all the same" in answer.reason
        silent.close()
    finally:
        found.close()


# -- who is believed ---


def forged(both: TwoBrokers, call: BrokerCall, target: str, **changed: Any) -> str:
    """A header of broker A for B, in which something is not as it should be."""
    given = {
        "secret": both.run(both.a.peers.secret()),
        "receiver": f"{both.b.peer.broker_id} {both.b.peer.instance}",
        "now_ms": both.clock.now_ms(),
        "once": "1",
        "method": "GET",
        "content_type": "",
        "body": b"",
        **changed,
    }
    message = SignedCall(
        given.pop("method"), target, given.pop("content_type"), digest(given.pop("body"))
    )
    return sealed(call, message, **given)


TARGET = f"{NAMESPACE}/t/stats"
PART = BrokerCall("a", is_part=True)


def ask_b(both: TwoBrokers, header: str, target: str = TARGET) -> Answer:
    return both.call(both.b, "GET", target, headers={HEADER: header})


def test_a_call_is_believed_once(both: TwoBrokers) -> None:
    both.topic(TOPIC, both.b)
    header = forged(both, PART, TARGET)
    assert ask_b(both, header).status == 200
    refused = ask_b(both, header)
    assert (refused.status, refused.reason) == (
        403,
        f"The header {HEADER} is refused: it was used before",
    )


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"secret": b"guessed"}, "it is not signed by a broker of this cluster"),
        ({"method": "DELETE"}, "it is not signed by a broker of this cluster"),
        ({"content_type": "text/plain"}, "it is not signed by a broker of this cluster"),
        ({"receiver": "c:8080 1"}, "it is meant for broker c:8080 1"),
    ],
)
def test_what_is_signed_for_something_else_is_refused(
    both: TwoBrokers, changed: dict[str, Any], why: str
) -> None:
    both.topic(TOPIC, both.b)
    refused = ask_b(both, forged(both, PART, TARGET, **changed))
    assert (refused.status, refused.reason) == (403, f"The header {HEADER} is refused: {why}")


def test_what_was_for_a_process_before_this_one_is_refused(both: TwoBrokers) -> None:
    """It knows what was used, and this one does not."""
    both.topic(TOPIC, both.b)
    header = forged(both, PART, TARGET, receiver=f"{both.b.peer.broker_id} before")
    assert ask_b(both, header).status == 403


def test_another_target_is_refused(both: TwoBrokers) -> None:
    both.topic(TOPIC, both.b)
    for target in (f"{TARGET}?x=1", f"{NAMESPACE}/t/internalStats", f"{NAMESPACE}/u/stats"):
        assert ask_b(both, forged(both, PART, TARGET), target).status == 403


@pytest.mark.parametrize("away_s", [-31, 31])
def test_an_old_call_is_refused(both: TwoBrokers, away_s: int) -> None:
    both.topic(TOPIC, both.b)
    header = forged(both, PART, TARGET, now_ms=both.clock.now_ms() + away_s * 1000)
    assert ask_b(both, header).status == 403


def test_a_number_is_kept_for_as_long_as_it_could_be_used_again(both: TwoBrokers) -> None:
    both.topic(TOPIC, both.b)
    ahead = both.clock.now_ms() + 30_000
    header = forged(both, PART, TARGET, now_ms=ahead)
    assert ask_b(both, header).status == 200
    both.clock.ms += 60_000
    assert ask_b(both, forged(both, PART, TARGET, once="2")).status == 200
    assert "it was used before" in ask_b(both, header).reason
    both.clock.ms += 1
    assert "the brokers' clocks differ" in ask_b(both, header).reason


@pytest.mark.parametrize("value", ["", ".", "x", "x.y", "a" * 33_000, "\u00e9.\u00e9"])
def test_garbage_is_refused(both: TwoBrokers, value: str) -> None:
    refused = both.call(both.b, "GET", TARGET, headers={HEADER: value})
    assert refused.status == 403


def test_a_body_that_is_not_the_one_that_was_signed_does_nothing(both: TwoBrokers) -> None:
    topic = both.topic(TOPIC, both.b)
    target = f"{NAMESPACE}/t/properties"
    for body, status in ((b'{"a": "c"}', 400), (b'{"a": "b"}', 204)):
        header = forged(
            both,
            PART,
            target,
            method="PUT",
            content_type="application/json",
            body=b'{"a": "b"}',
            once=str(status),
        )
        sent = {HEADER: header, "content-type": "application/json"}
        assert both.call(both.b, "PUT", target, raw=body, headers=sent).status == status
        assert dict(topic.ledger.record.properties) == ({} if status == 400 else {"a": "b"})


def test_a_broker_that_is_alone_believes_nobody(caplog: pytest.LogCaptureFixture) -> None:
    alone = AdminApi()
    try:
        alone.topic(TOPIC)
        for _ in range(3):
            assert alone.call("GET", TARGET, headers={HEADER: "garbage"}).status == 403
        assert len(caplog.messages) == 1, "a flood of them fills no log"
        alone.clock.ms += 60_000
        assert alone.call("GET", TARGET, headers={HEADER: "garbage"}).status == 403
        assert caplog.messages[-1].endswith("(2 more since the last such warning)")
        assert alone.run(alone.broker.metadata.get(BROKER_SECRET)) is None
    finally:
        alone.close()


def test_an_owner_that_does_not_believe_the_first_is_no_reason_to_refuse_the_client(
    both: TwoBrokers,
) -> None:
    both.topic(TOPIC, both.b)
    both.a.peers._secret = b"another"
    answer = both.call(both.a, "GET", TARGET)
    assert answer.status == 503
    assert "it is not signed by a broker of this cluster" in answer.reason
