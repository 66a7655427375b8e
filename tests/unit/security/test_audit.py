"""The audit: what an event has, how equal denials are summed, what is dropped, the chain."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from pulsark.security.audit.accesses import Accesses, AuditedAccess
from pulsark.security.audit.audit import Audit
from pulsark.security.audit.chain import NOTHING, AuditRecord, Checker, checked, record
from pulsark.security.audit.events import Call, Judged, is_change, shows_body
from pulsark.security.audit.events_waiting import (
    ROOM_OF_ACCESSES,
    ROOM_OF_DENIALS,
    EventsWaiting,
)
from pulsark.security.audit.limits import (
    AUDIT_EVENTS_MAX,
    AUDIT_STUCK_SECONDS,
    AUDIT_SUM_SECONDS,
    AUDIT_SUM_SECONDS_MAX,
    AUDIT_SUM_SECONDS_OF_KIND,
    AUDIT_SUMMED_HOSTS_MAX,
    AUDIT_SUMMED_MAX,
    AUDIT_SUMMED_OF_HOST_MAX,
    AUDIT_TEXT_CHARS_MAX,
)
from pulsark.security.decisions import Decision, Rule, Target
from pulsark.security.operations import (
    GeneralOperation,
    NamespaceOperation,
    PolicyOperation,
    TenantOperation,
    TopicOperation,
)
from pulsark.security.principal import Origin, Principal
from tests.support.logging_in import NOW_MS, SetClock

KITCHEN = Principal("kitchen", "cook", "token", None, "10.0.0.1:9", token_id="id-1")
HERE = Origin("binary", "10.0.0.1:9", "client 1.0")
TARGET = Target("cafe", "cafe/shop", "persistent://cafe/shop/orders", "bar")
DENIED = Judged(TopicOperation.CONSUME, TARGET, Decision(False, Rule.NONE))
GRANTED = Judged(TopicOperation.TERMINATE, TARGET, Decision(True, Rule.TENANT_ADMIN))


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def audit(clock: SetClock) -> Audit:
    return Audit(clock, "standalone", "localhost")


def events(audit: Audit) -> list[dict[str, Any]]:
    return [each.event for each in audit.waiting.take(AUDIT_EVENTS_MAX)]


def deny(audit: Audit, number: int = 0, host: str = "10.0.0.1") -> None:
    target = Target.of_namespace(f"cafe/shop-{number}")
    judged = Judged(NamespaceOperation.GET_TOPICS, target, Decision(False, Rule.NONE))
    audit.call(Origin("binary", f"{host}:9"), KITCHEN, Call("GET_TOPICS_OF_NAMESPACE"), judged)


# -- what is in an event -------------------------------------------------------------------------


def test_a_denial_says_who_where_what_and_why(audit: Audit) -> None:
    audit.call(HERE, KITCHEN, Call("SUBSCRIBE", "7"), DENIED)
    assert events(audit) == [
        {
            "time": NOW_MS,
            "cluster": "standalone",
            "broker": "localhost",
            "class_uid": 6003,
            "activity_id": 99,
            "type_uid": 600399,
            "severity_id": 3,
            "status_id": 2,
            "status_detail": "denied",
            "via": "binary",
            "src_endpoint": {"ip": "10.0.0.1", "port": 9},
            "client_version": "client 1.0",
            "operation": "SUBSCRIBE",
            "actor": {
                "role": "kitchen",
                "original_role": "cook",
                "method": "token",
                "token_id": "id-1",
            },
            "request_id": "7",
            "resource": {
                "type": "topic",
                "tenant": "cafe",
                "namespace": "cafe/shop",
                "name": "persistent://cafe/shop/orders",
                "subscription": "bar",
            },
            "authz": {"operation": "topic CONSUME", "rule": "none", "granted": False},
        }
    ]


def test_a_change_says_how_it_ended(audit: Audit) -> None:
    call = Call("POST /t/{topic}", "1f", "POST", "/t/{topic}", 409, 12, {"role": "x"}, after="[]")
    audit.call(Origin("rest", "::1:80"), None, call, GRANTED)
    [event] = events(audit)
    assert event["http"] == {"method": "POST", "route": "/t/{topic}", "status": 409}
    assert (event["activity_id"], event["status_id"], event["severity_id"]) == (3, 2, 1)
    assert (event["parameters"], event["after"], event["duration_ms"]) == ({"role": "x"}, "[]", 12)
    assert event["src_endpoint"] == {"ip": "::1", "port": 80}
    assert "actor" not in event


def test_a_certificate_that_is_refused_is_a_login_that_failed(audit: Audit) -> None:
    audit.certificate_refused("flight", "10.0.0.1", "certificate revoked")
    [event] = events(audit)
    assert (event["operation"], event["status_id"], event["via"]) == ("login", 2, "flight")
    assert event["status_detail"] == "certificate: certificate revoked"
    assert event["src_endpoint"] == {"ip": "10.0.0.1"}


def test_texts_of_clients_are_cut(audit: Audit) -> None:
    long = "x" * 10_000
    principal = Principal(long, long, long, None, "", long, long)
    audit.call(Origin("binary", long, long), principal, Call(long, long), DENIED)
    audit.login_failed(Origin("rest", long), long, long, long)
    for event in events(audit):
        assert len(json.dumps(event)) < 12 * AUDIT_TEXT_CHARS_MAX


@pytest.mark.parametrize(
    ("operation", "changes", "shown"),
    [
        (TopicOperation.TERMINATE, True, False),
        (TopicOperation.RESET_CURSOR, True, False),
        (TopicOperation.PRODUCE, False, False),
        (TopicOperation.CONSUME, False, False),
        (TopicOperation.PEEK_MESSAGES, False, False),
        (GeneralOperation.LOGIN, False, False),
        (GeneralOperation.SUPER_USER, True, False),
        (GeneralOperation.ADMINISTER_TENANT, True, True),
        (NamespaceOperation.GRANT_PERMISSION, True, True),
        (TenantOperation.UPDATE_TENANT, True, True),
        (PolicyOperation("TTL", True), True, True),
        (PolicyOperation("TTL", False), False, True),
    ],
    ids=str,
)
def test_which_requests_change_something(operation: Any, changes: bool, shown: bool) -> None:
    assert (is_change(operation), shows_body(operation)) == (changes, shown)


# -- sums ----------------------------------------------------------------------------------------


def test_equal_denials_are_one_event_and_a_number(audit: Audit, clock: SetClock) -> None:
    for _ in range(5):
        deny(audit)
    deny(audit, 1)
    first, other = events(audit)
    assert "suppressed" not in first | other
    assert audit.due_in_s == AUDIT_SUM_SECONDS
    audit.end_sums()
    assert events(audit) == []
    clock.ms += int(AUDIT_SUM_SECONDS * 1000)
    audit.end_sums()
    assert events(audit) == [{**first, "suppressed": 4, "time": clock.ms}]
    assert audit.due_in_s is None
    deny(audit)
    assert len(events(audit)) == 1


def test_a_denial_after_the_span_does_not_wait_for_anybody_to_end_it(
    audit: Audit, clock: SetClock
) -> None:
    deny(audit)
    deny(audit)
    clock.ms += int(AUDIT_SUM_SECONDS * 1000)
    deny(audit)
    assert [event.get("suppressed") for event in events(audit)] == [None, 1, None]


def stranger(audit: Audit, number: int = 0, host: str = "10.0.0.1") -> None:
    """A login that fails, each by another token."""
    audit.login_failed(Origin("binary", f"{host}:9"), "signature", "token", f"{number:016x}")


def test_who_varies_its_denials_has_them_counted_together(audit: Audit) -> None:
    """By its role, from wherever; a stranger by its address."""
    for number in range(AUDIT_SUMMED_OF_HOST_MAX + 50):
        deny(audit, number, host=f"10.0.0.{number % 7}")
        stranger(audit, number)
    stranger(audit, host="10.0.0.2")
    assert len(events(audit)) == 2 * AUDIT_SUMMED_OF_HOST_MAX + 1
    audit.end_sums(at_once=True)
    role, address = events(audit)
    assert role["operation"] == address["operation"] == "various"
    assert role["suppressed"] == address["suppressed"] == 50
    assert role["actor"] == {"role": "kitchen"}
    assert "src_endpoint" not in role
    assert address["src_endpoint"] == {"ip": "10.0.0.1"}
    assert "actor" not in address


def test_a_network_of_ipv6_is_one_stranger(audit: Audit) -> None:
    for number in range(3 * AUDIT_SUMMED_OF_HOST_MAX):
        stranger(audit, number, host=f"2001:db8::{number:x}")
    assert len(events(audit)) == AUDIT_SUMMED_OF_HOST_MAX


def test_what_strangers_make_the_broker_write_is_bounded(audit: Audit) -> None:
    count = AUDIT_SUMMED_HOSTS_MAX + AUDIT_SUMMED_MAX + 500
    for number in range(count):
        stranger(audit, number, host=f"10.1.{number // 256}.{number % 256}")
    noted = events(audit)
    audit.end_sums(at_once=True)
    sums = events(audit)
    assert len(noted) == AUDIT_SUMMED_MAX
    assert len(sums) <= AUDIT_SUMMED_HOSTS_MAX + 1
    assert len(noted) + sum(event["suppressed"] for event in sums) == count


def test_strangers_do_not_blur_what_those_who_are_known_are_denied(audit: Audit) -> None:
    anonymous = Principal("nobody", method="none")
    for number in range(2 * AUDIT_SUMMED_MAX):
        origin = Origin("binary", f"10.1.{number // 256}.{number % 256}:9")
        audit.login_failed(origin, "signature", "token", f"{number:016x}")
        audit.call(origin, anonymous, Call("SUBSCRIBE", "1"), DENIED)
    events(audit)
    deny(audit)
    [event] = events(audit)
    assert event["actor"]["role"] == "kitchen"


def test_a_flood_that_lasts_is_written_ever_less(audit: Audit, clock: SetClock) -> None:
    """In a day some megabytes, whatever a stranger does."""
    written, seconds = 0, 7200
    for second in range(0, seconds, 2):
        for number in range(10):
            stranger(audit, 10 * second + number)
        audit.end_sums()
        written += len(events(audit))
        clock.ms += 2000
    assert written < seconds / 2


def test_a_few_denials_are_counted_for_a_short_time(audit: Audit) -> None:
    deny(audit)
    deny(audit, 1)
    assert audit.due_in_s == AUDIT_SUM_SECONDS
    for number in range(AUDIT_SUMMED_OF_HOST_MAX):
        deny(audit, number)
    assert audit.due_in_s == AUDIT_SUMMED_OF_HOST_MAX * AUDIT_SUM_SECONDS_OF_KIND
    for number in range(3 * AUDIT_SUMMED_OF_HOST_MAX):
        stranger(audit, number, host=f"10.0.0.{number % 100}")
    audit.end_sums(at_once=True)
    for number in range(3 * AUDIT_SUMMED_OF_HOST_MAX):
        stranger(audit, number, host=f"10.0.0.{number % 100}")
    assert audit.due_in_s == AUDIT_SUM_SECONDS_MAX


def test_changes_are_never_summed(audit: Audit) -> None:
    for _ in range(3):
        audit.call(HERE, KITCHEN, Call("PUT /x", method="PUT", status=204), GRANTED)
    assert len(events(audit)) == 3
    assert audit.due_in_s is None


@pytest.mark.parametrize(
    ("operation", "status"), [(TopicOperation.SKIP, 204), (TopicOperation.TERMINATE, 412)], ids=str
)
def test_changes_without_effect_and_those_of_every_consumer_are(
    audit: Audit, operation: TopicOperation, status: int
) -> None:
    """A role that may consume could fill the disk with them."""
    judged = Judged(operation, TARGET, Decision(True, Rule.TOPIC_GRANT))
    for number in range(1000):
        call = Call("POST /x", str(number), "POST", "/x", status, parameters={"n": "1"})
        audit.call(HERE, KITCHEN, call, judged)
    audit.call(HERE, KITCHEN, call._replace(parameters={"n": "2"}), judged)
    assert [each["parameters"]["n"] for each in events(audit)] == ["1", "2"]
    audit.end_sums(at_once=True)
    [counted] = events(audit)
    assert counted["suppressed"] == 999


def test_failed_logins_are_summed_by_address_and_reason(audit: Audit) -> None:
    for address in ("10.0.0.1:1", "10.0.0.1:2", "10.0.0.2:1"):
        audit.login_failed(Origin("binary", address), "expired", "token")
    audit.login_failed(Origin("binary", "10.0.0.1:3"), "signature", "token")
    found = [(e["src_endpoint"]["ip"], e["status_detail"]) for e in events(audit)]
    assert found == [
        ("10.0.0.1", "expired"),
        ("10.0.0.2", "expired"),
        ("10.0.0.1", "signature"),
    ]


# -- what waits ----------------------------------------------------------------------------------


def test_what_finds_no_room_is_counted_and_said() -> None:
    waiting = EventsWaiting()
    for number in range(AUDIT_EVENTS_MAX + 7):
        waiting.put({"number": number})
    assert (len(waiting), waiting.dropped) == (AUDIT_EVENTS_MAX, 7)
    assert [each.lost_before for each in waiting.take(2)] == [0, 0]
    waiting.put({})
    taken = waiting.take(AUDIT_EVENTS_MAX)
    assert [each.lost_before for each in taken if each.lost_before] == [7]
    assert taken[-1] == ({}, 7)


@pytest.mark.parametrize("room", [ROOM_OF_DENIALS, ROOM_OF_ACCESSES])
def test_other_events_leave_room_for_changes(room: int) -> None:
    waiting = EventsWaiting()
    for _ in range(AUDIT_EVENTS_MAX):
        waiting.put({}, room)
    assert len(waiting) == room < AUDIT_EVENTS_MAX
    waiting.put({"change": 1})
    assert len(waiting) == room + 1


# -- who had which data --------------------------------------------------------------------------


def test_the_first_access_of_a_day_is_noted(clock: SetClock) -> None:
    audit = Audit(clock, "standalone", "localhost", notes_access=True)
    clock.ms = 20_000 * 86_400_000
    for origin in (HERE, HERE, Origin("flight", "10.0.0.2:7")):
        audit.accessed(origin, KITCHEN, "consume", TARGET)
    audit.accessed(HERE, KITCHEN, "produce", TARGET)
    audit.accessed(HERE, dataclasses.replace(KITCHEN, original="chef"), "consume", TARGET)
    first, produced, other = events(audit)
    assert (first["operation"], first["activity_id"], first["status_id"]) == ("consume", 2, 1)
    assert (first["via"], first["resource"]["name"]) == ("binary", TARGET.topic)
    assert (produced["operation"], produced["activity_id"]) == ("produce", 1)
    assert other["actor"]["original_role"] == "chef"
    clock.ms += 86_400_000 - 1
    audit.accessed(HERE, KITCHEN, "produce", TARGET)
    assert events(audit) == []
    clock.ms += 1
    audit.accessed(HERE, KITCHEN, "produce", TARGET)
    assert len(events(audit)) == 1


def test_accesses_are_noted_only_where_that_is_wanted(audit: Audit) -> None:
    audit.accessed(HERE, KITCHEN, "consume", TARGET)
    assert events(audit) == []


def test_of_too_many_accesses_the_oldest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pulsark.security.audit.accesses.AUDIT_ACCESSES_MAX", 2)
    accesses = Accesses()
    asked = [AuditedAccess.of(None, "consume", topic) for topic in ("a", "b", "c", "b", "a")]
    assert [accesses.is_first(each, 0) for each in asked] == [True, True, True, False, True]


# -- whether it can be written -------------------------------------------------------------------


def test_when_the_topic_takes_no_events(audit: Audit, clock: SetClock) -> None:
    assert not audit.is_stuck
    audit.failing = True
    assert audit.is_stuck
    audit.failing, audit.given_at = False, clock.monotonic()
    clock.ms += int(AUDIT_STUCK_SECONDS * 1000)
    assert not audit.is_stuck
    clock.ms += 1
    assert audit.is_stuck
    audit.given_at = None
    assert not audit.is_stuck
    for _ in range(AUDIT_EVENTS_MAX):
        audit.broker("e")
    assert audit.is_stuck


def test_what_a_rate_holds_back_names_whose_it_is(audit: Audit) -> None:
    audit.throttled("topic", "persistent://cafe/shop/orders", 12.5)
    audit.throttled("resource_group", "tables", 70.0)
    audit.throttled("topic", "persistent://cafe/shop/orders", 72.5)
    topic, group = events(audit)
    assert (topic["operation"], topic["status_detail"]) == ("throttled", "publish rate")
    assert (topic["resource"]["name"], topic["duration_ms"]) == (TARGET.topic, 12_500)
    assert group["resource"] == {"type": "resource_group", "name": "tables"}


# -- the chain -----------------------------------------------------------------------------------


def chain(count: int, broker: str = "b") -> list[AuditRecord]:
    found, head = [], NOTHING
    for number in range(count):
        found.append(record({"broker": broker, "number": number}, head))
        head = found[-1].head
    return found


def read(records: list[AuditRecord]) -> list[dict[str, Any]]:
    return [json.loads(each.payload) for each in records]


def test_a_whole_chain() -> None:
    checker = Checker()
    assert [f for each in read(chain(5)) for f in checker.add(each)] == []
    assert (checker.records, checker.lost) == (5, 0)
    assert checker.heads["b"] == chain(5)[-1].head


def test_a_record_may_come_back_in_another_form() -> None:
    first, second = read(chain(2))
    assert checked([{**dict(reversed(first.items())), "actor": None}, second]) == []


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_record_that_was_changed_is_found(number: int) -> None:
    records = read(chain(5))
    records[number]["number"] = 100
    [finding] = checked(records)
    assert finding.seq == number + 1


def test_a_record_that_was_removed_or_inserted_is_found() -> None:
    records = chain(5)
    assert [f.seq for f in checked(read(records[:2] + records[3:]))] == [3]
    forged = record({"broker": "b"}, records[1].head)
    assert [f.seq for f in checked(read([*records[:2], forged, *records[2:]]))] == [2]
    assert [f.seq for f in checked(read(records[2:]))] == [2]
    assert [f.seq for f in checked([*read(records), {"by": "a stranger"}, None])] == [-1, -1]


def test_records_that_were_published_again_are_no_break() -> None:
    records = chain(6)
    assert checked(read(records[:5] + records[3:])) == []


def test_a_gap_in_a_chain_that_holds_is_what_was_lost() -> None:
    first = record({"broker": "b"}, NOTHING)
    second = record({"broker": "b"}, first.head, 4)
    checker = Checker()
    assert [f for each in read([first, second]) for f in checker.add(each)] == []
    assert (second.head.seq, checker.lost) == (5, 4)


def test_a_number_that_does_not_grow_is_found() -> None:
    """Else a chain made anew could take back what it says was lost."""
    first, second = chain(2)
    forged = json.dumps({"broker": "b", "seq": 0, "prev_hash": second.head.digest})
    found = [*read([first, second]), json.loads(forged)]
    assert [f.problem for f in checked(found)] == ["comes after record 1"]


def test_a_chain_made_anew_lacks_the_digest_of_the_log() -> None:
    """Whoever can write everything can make a whole chain, but not the one that was logged."""
    noted = chain(5)[3].head.digest
    for records, problems in ((chain(5), []), (chain(3), [noted])):
        checker = Checker(noted)
        assert [f for each in read(records) for f in checker.add(each)] == []
        assert [f.problem[-64:] for f in checker.end()] == problems
    assert list(Checker().end()) == []


def test_starts_without_stops_are_counted() -> None:
    checker, head = Checker(), NOTHING
    for operation in ("start", "e", "stop", "start", "stop", "start", "e", "start", "start"):
        made = record({"broker": "b", "operation": operation}, head)
        head = made.head
        assert list(checker.add(json.loads(made.payload))) == []
    assert checker.starts_without_stop == 2


def test_brokers_have_chains_of_their_own() -> None:
    pairs = zip(chain(3, "a"), chain(3, "b"), strict=True)
    assert checked(read([each for pair in pairs for each in pair])) == []
