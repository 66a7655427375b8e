"""Topic lists: filtered by pattern, and followed as topics come and go."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Any

import pytest

from pulsark.dispatch.topics import topic_encodings, topic_lists
from pulsark.dispatch.topics.catalog import TopicCatalog
from pulsark.dispatch.topics.non_persistent_topics import NonPersistentTopics
from pulsark.dispatch.topics.topic_lists import ByPattern, TopicFeeds, TopicList, TopicWatcher
from pulsark.dispatch.topics.topic_pattern import TopicPattern
from pulsark.errors import ClientError, MetadataError, ServerError
from pulsark.limits import (
    TOPIC_FEED_LINGER_SECONDS,
    TOPIC_PATTERNS_KEPT_MAX,
    TOPIC_WATCHERS_PER_CONNECTION_MAX,
)
from pulsark.metadata import resources
from pulsark.metadata.memory import MemoryTree
from pulsark.metadata.paths import managed_ledger_path
from pulsark.metadata.resources import Resources
from pulsark.metadata.store import Versioned
from pulsark.security.facts import Rules
from pulsark.security.principal import Principal
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.hashes import TopicsHash, topics_hash
from pulsark.wire.topic_name import TopicName
from tests.support.broker_clients import BrokerInMemory, Client, Command, scenario
from tests.support.faulty_metadata import FaultyStore

PREFIX = "persistent://public/default/"
ALL = "public/default/.*"


def list_command(pattern: str, topics_hash: str = "") -> pb.BaseCommand:
    command = Command(type=Command.GET_TOPICS_OF_NAMESPACE)
    request = command.getTopicsOfNamespace
    request.request_id, request.namespace = 1, "public/default"
    request.topics_pattern, request.topics_hash = pattern, topics_hash
    return command


def watch_command(pattern: str, watcher_id: int = 7, topics_hash: str = "") -> pb.BaseCommand:
    command = Command(type=Command.WATCH_TOPIC_LIST)
    request = command.watchTopicList
    request.request_id, request.watcher_id = 2, watcher_id
    request.namespace, request.topics_pattern = "public/default", pattern
    request.topics_hash = topics_hash
    return command


async def create(broker: BrokerInMemory, *names: str) -> None:
    for name in names:
        await broker.broker.creation.create_topic(TopicName.parse(PREFIX + name), {})


async def watch(client: Client, pattern: str, **fields: Any) -> pb.CommandWatchTopicListSuccess:
    client.send(watch_command(pattern, **fields))
    return (await client.take(Command.WATCH_TOPIC_LIST_SUCCESS)).watchTopicListSuccess


async def update(client: Client) -> pb.CommandWatchTopicUpdate:
    return (await client.take(Command.WATCH_TOPIC_UPDATE)).watchTopicUpdate


@pytest.mark.parametrize(
    ("pattern", "taken"),
    [
        ("public/default/a.*", True),
        ("persistent://public/default/a.*", True),
        ("public/default/a", False),
        ("public/default/ab", True),
        ("public/default/b.*", False),
        (".*", True),
    ],
)
def test_a_pattern_takes_whole_names_without_scheme_and_partition(
    pattern: str, taken: bool
) -> None:
    assert TopicPattern(pattern, 50).select([f"{PREFIX}ab-partition-3"]) == (
        [f"{PREFIX}ab-partition-3"] if taken else []
    )


@pytest.mark.parametrize("pattern", ["(", "(?=a).*", "a" * 51, "(a{1000}){1000}"])
def test_patterns_that_are_not_evaluated(pattern: str) -> None:
    with pytest.raises(ClientError) as refused:
        TopicPattern(pattern, 50)
    assert refused.value.code == ServerError.NotAllowedError


@pytest.mark.command("GET_TOPICS_OF_NAMESPACE")
@pytest.mark.feature("F36")
@scenario()
async def test_a_list_is_filtered_and_left_out_when_the_client_has_it(broker, monkeypatch) -> None:
    monkeypatch.setattr(resources, "SYSTEM_TOPICS", frozenset({f"{PREFIX}a-own"}))
    await create(broker, "a-1", "a-2", "b-1", "a-own")
    client = Client(broker)
    client.send(list_command("public/default/a-.*"))
    answer = (
        await client.take(Command.GET_TOPICS_OF_NAMESPACE_RESPONSE)
    ).getTopicsOfNamespaceResponse
    assert list(answer.topics) == [f"{PREFIX}a-1", f"{PREFIX}a-2"]
    assert answer.filtered
    assert answer.changed
    client.send(list_command("public/default/a-.*", answer.topics_hash))
    again = (
        await client.take(Command.GET_TOPICS_OF_NAMESPACE_RESPONSE)
    ).getTopicsOfNamespaceResponse
    assert (list(again.topics), again.changed) == ([], False)


@scenario()
async def test_a_pattern_that_only_the_client_knows_gets_all_topics(broker) -> None:
    await create(broker, "a-1", "b-1")
    client = Client(broker)
    client.send(list_command("public/default/(?=a).*"))
    answer = (
        await client.take(Command.GET_TOPICS_OF_NAMESPACE_RESPONSE)
    ).getTopicsOfNamespaceResponse
    assert list(answer.topics) == [f"{PREFIX}a-1", f"{PREFIX}b-1"]
    assert not answer.filtered


@pytest.mark.command("WATCH_TOPIC_LIST", "WATCH_TOPIC_LIST_SUCCESS", "WATCH_TOPIC_UPDATE")
@pytest.mark.feature("F36")
@scenario()
async def test_a_watcher_hears_of_topics_that_come_and_go(broker) -> None:
    await create(broker, "a-1", "b-1")
    client = Client(broker)
    first = await watch(client, "public/default/a-.*")
    assert list(first.topic) == [f"{PREFIX}a-1"]
    assert first.topics_hash == topics_hash(first.topic)
    await create(broker, "b-2", "a-2")
    found = await update(client)
    assert (found.watcher_id, list(found.new_topics)) == (7, [f"{PREFIX}a-2"])
    assert found.topics_hash == topics_hash([f"{PREFIX}a-1", f"{PREFIX}a-2"])
    await broker.broker.deletion.delete_topic(TopicName.parse(f"{PREFIX}a-1"))
    found = await update(client)
    assert (list(found.new_topics), list(found.deleted_topics)) == ([], [f"{PREFIX}a-1"])
    assert found.topics_hash == topics_hash([f"{PREFIX}a-2"])


@scenario()
async def test_a_watcher_hears_of_partitions(broker) -> None:
    client = Client(broker)
    await watch(client, "public/default/p")
    base = TopicName.parse(f"{PREFIX}p")
    await broker.broker.creation.create_partitioned_topic(base, 2, {})
    assert list((await update(client)).new_topics) == [f"{base}-partition-0", f"{base}-partition-1"]
    await broker.broker.resources.partitioned_topics.update(base, 3)
    assert list((await update(client)).new_topics) == [f"{base}-partition-2"]
    await broker.broker.deletion.delete_partitioned_topic(base)
    assert len((await update(client)).deleted_topics) == 3


@scenario()
async def test_a_watcher_with_the_same_topics_is_not_sent_them(broker) -> None:
    await create(broker, "a-1")
    known = topics_hash([f"{PREFIX}a-1"])
    found = await watch(Client(broker), ALL, topics_hash=known)
    assert (list(found.topic), found.topics_hash) == ([], known)


@pytest.mark.command("WATCH_TOPIC_LIST_CLOSE")
@scenario()
async def test_nothing_is_followed_once_the_last_watcher_left(broker) -> None:
    first, second = Client(broker), Client(broker)
    await watch(first, ALL)
    await watch(second, ALL, watcher_id=8)
    close = Command(type=Command.WATCH_TOPIC_LIST_CLOSE)
    close.watchTopicListClose.request_id, close.watchTopicListClose.watcher_id = 3, 7
    first.send(close)
    assert (await first.take(Command.SUCCESS)).success.request_id == 3
    await create(broker, "a-1")
    await update(second)
    assert not first.has(Command.WATCH_TOPIC_UPDATE)
    second.hang_up()
    await asyncio.sleep(TOPIC_FEED_LINGER_SECONDS - 1)
    assert broker.broker.topic_feeds._feeds
    await asyncio.sleep(1.01)
    assert not broker.broker.topic_feeds._feeds
    assert list((await watch(Client(broker), ALL)).topic) == [f"{PREFIX}a-1"]


@scenario()
async def test_a_watcher_of_nothing_that_exists_or_is_allowed_is_refused(broker) -> None:
    client = Client(broker)
    for command, code in (
        (watch_command("("), ServerError.NotAllowedError),
        (watch_command("a" * 60), ServerError.NotAllowedError),
    ):
        client.send(command)
        assert (await client.take(Command.ERROR)).error.error == code
    await asyncio.sleep(0.01)
    assert not broker.broker.topic_feeds._feeds


@scenario()
async def test_a_namespace_that_is_to_be_can_be_watched(broker) -> None:
    client = Client(broker)
    command = watch_command("public/later/.*")
    command.watchTopicList.namespace = "public/later"
    client.send(command)
    found = (await client.take(Command.WATCH_TOPIC_LIST_SUCCESS)).watchTopicListSuccess
    assert not found.topic
    await broker.broker.resources.namespaces.create("public/later")
    await broker.broker.creation.create_topic(TopicName.parse("public/later/t"), {})
    assert list((await update(client)).new_topics) == ["persistent://public/later/t"]


@scenario()
async def test_a_feed_of_a_namespace_without_topics_goes_with_its_last_user(broker) -> None:
    client = Client(broker)
    for number in range(20):
        command = watch_command(ALL)
        command.watchTopicList.namespace = f"public/missing-{number}"
        client.send(command)
        await client.take(Command.WATCH_TOPIC_LIST_SUCCESS)
    client.hang_up()
    await asyncio.sleep(0.01)
    assert not broker.broker.topic_feeds._feeds


@scenario(maxMessageSize=20_000)
async def test_a_list_beyond_a_frame_is_an_error_and_no_broken_connection(broker) -> None:
    await create(broker, *("x" * 200 + str(number) for number in range(140)))
    client = Client(broker)
    for command in (list_command(""), watch_command(ALL)):
        client.send(command)
        error = (await client.take(Command.ERROR)).error
        assert error.error == ServerError.NotAllowedError
        assert "maxMessageSize" in error.message
    assert not client.connection.opened.watchers
    few = await watch(client, ALL.replace(".*", "x+1"))
    assert list(few.topic) == [f"{PREFIX}{'x' * 200}1"]


@scenario(maxMessageSize=20_000)
async def test_changes_beyond_a_frame_are_told_in_several_updates(broker) -> None:
    client = Client(broker)
    await watch(client, ALL)
    (watcher,) = client.connection.opened.watchers.values()
    new = [f"{PREFIX}{n}" for n in range(2500)]
    watcher.updated(new, [f"{PREFIX}gone"], "hash")
    told = []
    while sum(len(each.new_topics) for each in told) < len(new):
        told.append(await update(client))
    assert len(told) > 3
    assert max(each.ByteSize() for each in told) <= 20_000
    assert [name for each in told for name in each.new_topics] == new
    assert [name for each in told for name in each.deleted_topics] == [f"{PREFIX}gone"]
    assert {each.topics_hash for each in told} == {"hash"}


@scenario()
async def test_watchers_of_a_connection_are_bounded(broker) -> None:
    client = Client(broker)
    for watcher_id in range(TOPIC_WATCHERS_PER_CONNECTION_MAX):
        await watch(client, ALL, watcher_id=watcher_id)
    client.send(watch_command(ALL, TOPIC_WATCHERS_PER_CONNECTION_MAX))
    assert (await client.take(Command.ERROR)).error.error == ServerError.TooManyRequests
    assert (await watch(client, ALL, watcher_id=3)).watcher_id == 3


@scenario()
async def test_watchers_that_are_asked_for_at_once_are_bounded_too(broker) -> None:
    client = Client(broker)
    many = range(TOPIC_WATCHERS_PER_CONNECTION_MAX + 20)
    client.send(*[watch_command(ALL, watcher_id) for watcher_id in many])
    for _ in range(20):
        assert (await client.take(Command.ERROR)).error.error == ServerError.TooManyRequests
    assert len(client.connection.opened.watchers) == TOPIC_WATCHERS_PER_CONNECTION_MAX


@scenario()
async def test_only_some_unwatched_patterns_are_remembered(broker) -> None:
    await create(broker, "a-1")
    client, watcher = Client(broker), Client(broker)
    await watch(watcher, ALL)
    for number in range(3 * TOPIC_PATTERNS_KEPT_MAX):
        client.send(list_command(f"public/default/a-1|{number}"))
        await client.take(Command.GET_TOPICS_OF_NAMESPACE_RESPONSE)
        await watch(client, f"public/default/{number}")
        close = Command(type=Command.WATCH_TOPIC_LIST_CLOSE)
        close.watchTopicListClose.request_id, close.watchTopicListClose.watcher_id = 3, 7
        client.send(close)
        await client.take(Command.SUCCESS)
    (feed,) = broker.broker.topic_feeds._feeds.values()
    assert len(feed._selections) <= TOPIC_PATTERNS_KEPT_MAX + 1
    await create(broker, "a-2")
    assert list((await update(watcher)).new_topics) == [f"{PREFIX}a-2"]
    assert len(feed._selections) == 1


@scenario(enableBrokerSideSubscriptionPatternEvaluation=False)
async def test_the_switch(broker) -> None:
    client = Client(broker)
    client.send(watch_command(ALL))
    assert (await client.take(Command.ERROR)).error.error == ServerError.NotAllowedError
    client.send(list_command("public/default/x"))
    answer = await client.take(Command.GET_TOPICS_OF_NAMESPACE_RESPONSE)
    assert not answer.getTopicsOfNamespaceResponse.filtered


# -- whatever happens ------------------------------------------------------------------------------

SINGLE = [f"{PREFIX}{name}" for name in ("a-0", "a-1", "a-2", "b-0", "own")]
PARTED = [TopicName.parse(f"{PREFIX}p-{number}") for number in range(3)]
PATTERNS = [f"public/default/{each}" for each in (".*", "a-.*", "p-.*", ".*-0", "nothing")]


class Unsteady(FaultyStore):
    """Reads take a few turns of the loop, and some fail for a while."""

    def __init__(self, tree: MemoryTree, chance: random.Random) -> None:
        super().__init__(tree)
        self._chance = chance
        self.slow = self.fails = False

    async def get(self, path: str) -> Versioned | None:
        await self._read()
        return await super().get(path)

    async def children(self, path: str) -> list[str]:
        await self._read()
        return await super().children(path)

    async def _read(self) -> None:
        for _ in range(self._chance.choice((0, 0, 1, 5)) if self.slow else 0):
            await asyncio.sleep(0)
        if self.fails and not self._chance.randrange(4):
            raise MetadataError("the store does not answer")


class Follower:
    """What a client knows that was told what it watches, and all changes since."""

    def __init__(self) -> None:
        self.topics: set[str] = set()
        self.hash = ""
        self.early: list[tuple[list[str], list[str], str]] | None = []
        """What came before the first answer."""

    def begin(self, found: TopicList) -> None:
        self.topics, self.hash = set(found.topics), found.hash
        early, self.early = self.early, None
        for each in early or ():
            self.updated(*each)

    def updated(self, new: list[str], deleted: list[str], digest: str) -> None:
        if self.early is not None:
            self.early.append((new, deleted, digest))
            return
        assert self.topics.isdisjoint(new)
        assert self.topics.issuperset(deleted)
        self.topics, self.hash = (self.topics | set(new)) - set(deleted), digest


@pytest.mark.parametrize("seed", range(12))
@scenario()
async def test_lists_and_watchers_follow_whatever_is_made_and_deleted(
    broker: BrokerInMemory, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare with a set. Lists are as new as the request; watchers hear of all in the end."""
    monkeypatch.setattr(resources, "SYSTEM_TOPICS", frozenset({f"{PREFIX}own"}))
    monkeypatch.setattr(topic_lists, "TOPIC_NAMES_PER_TURN", 2)
    chance = random.Random(seed)
    await create(broker, "b-0")
    record = (await broker.metadata.get(managed_ledger_path(TopicName.parse(f"{PREFIX}b-0")))).value
    store = Unsteady(broker._tree, chance)
    catalog = TopicCatalog(store, Resources(store, broker._runtime), NonPersistentTopics())
    feeds, records = TopicFeeds(store, catalog), broker.broker.resources.partitioned_topics
    singles, parted = {f"{PREFIX}b-0"}, dict.fromkeys(PARTED, 0)
    followers: dict[Follower, tuple[str, TopicWatcher]] = {}
    starting: set[asyncio.Task[None]] = set()

    def expected(pattern: str) -> list[str]:
        there = singles - {f"{PREFIX}own"}
        there |= {name for base, count in parted.items() for name in base.partition_names(count)}
        return TopicPattern(pattern, 50).select(sorted(there))

    async def change() -> None:
        if chance.randrange(2):
            name = chance.choice(SINGLE)
            path = managed_ledger_path(TopicName.parse(name))
            if name in singles:
                await broker.metadata.delete(path)
            else:
                await broker.metadata.put(path, record)
            singles.symmetric_difference_update({name})
            return
        base = chance.choice(PARTED)
        count = parted[base]
        if not count:
            await records.create(base, 1)
        elif count < 4:
            await records.update(base, count + 1)
        else:
            await records.begin_delete(base)
            await records.delete(base)
        parted[base] = (count + 1) % 5

    async def watch(pattern: str) -> None:
        follower = Follower()
        selector = ByPattern(TopicPattern(pattern, 50))
        with suppress(MetadataError):
            watcher = await feeds.of("public/default").watch(selector, follower.updated)
            follower.begin(watcher.found)
            followers[follower] = pattern, watcher

    for step in range(150):
        for _ in range(chance.choice((0, 1, 1, 2))):
            await change()
        for _ in range(chance.choice((0, 0, 1, 3, 20))):
            await asyncio.sleep(0)
        store.slow = chance.randrange(3) > 0
        match chance.randrange(8):
            case 0:
                task = asyncio.create_task(watch(chance.choice(PATTERNS)))
                starting.add(task)
                task.add_done_callback(starting.discard)
            case 1 if followers:
                _, watcher = followers.pop(chance.choice(list(followers)))
                watcher.close()
            case 2 if not store.away:
                await asyncio.sleep(0)  # the feed is told of changes
                pattern = chance.choice(PATTERNS)
                with suppress(MetadataError):
                    found = await feeds.of("public/default").select(TopicPattern(pattern, 50))
                    assert found.topics == expected(pattern)
                    assert found.hash == topics_hash(found.topics)
            case 3:
                store.fails = not store.fails
            case 4:
                store.watch_again() if store.away else store.lose_watches()
        if step % 10 == 9:
            store.fails = False
            if store.away:
                store.watch_again()
            await asyncio.sleep(10 * topic_lists.RETRY_SECONDS)
            for follower, (pattern, _) in followers.items():
                assert sorted(follower.topics) == expected(pattern)
                assert follower.hash == topics_hash(sorted(follower.topics))
    assert not starting
    feeds.close()


# -- very many topics ------------------------------------------------------------------------------


async def create_many(broker: BrokerInMemory, count: int) -> list[str]:
    """Topics that have a record and nothing else."""
    names = [f"{PREFIX}many-{number:05d}" for number in range(count)]
    first = TopicName.parse(f"{PREFIX}first")
    await broker.broker.creation.create_topic(first, {})
    record = await broker.metadata.get(managed_ledger_path(first))
    for name in names:
        await broker.metadata.put(managed_ledger_path(TopicName.parse(name)), record.value)
    return names


def count_per_turn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many names were matched or hashed, each time that some were."""
    counts: list[int] = []
    select, add = TopicPattern.select, TopicsHash.add
    monkeypatch.setattr(
        TopicPattern, "select", lambda self, t: [counts.append(len(t)), select(self, t)][1]
    )
    monkeypatch.setattr(TopicsHash, "add", lambda self, t: [counts.append(len(t)), add(self, t)][1])
    return counts


def test_patterns_of_many_clients_are_evaluated_once_and_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @scenario()
    async def run(broker: BrokerInMemory) -> None:
        monkeypatch.setattr(topic_lists, "TOPIC_NAMES_PER_TURN", 50)
        names = await create_many(broker, 500)
        counts = count_per_turn(monkeypatch)
        clients = [Client(broker) for _ in range(20)]
        for client in clients:
            client.send(watch_command("public/default/many-.*"))
        turns = []
        while not all(client.has(Command.WATCH_TOPIC_LIST_SUCCESS) for client in clients):
            before = len(counts)
            await asyncio.sleep(0)
            turns.append(sum(counts[before:]))
        assert max(turns) <= 50
        assert sum(counts) == 3 * len(names) + 2  # hashed, matched, and what was found hashed
        for client in clients:
            found = (await client.take(Command.WATCH_TOPIC_LIST_SUCCESS)).watchTopicListSuccess
            assert list(found.topic) == names
            assert found.topics_hash == topics_hash(names)
        client = Client(broker)
        del counts[:]
        client.send(list_command("public/default/many-.*"))
        answer = await client.take(Command.GET_TOPICS_OF_NAMESPACE_RESPONSE)
        assert list(answer.getTopicsOfNamespaceResponse.topics) == names
        assert counts == []

    run()


def test_many_changes_are_told_in_turns_and_topics_are_listed_as_soon_as_they_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @scenario()
    async def run(broker: BrokerInMemory) -> None:
        monkeypatch.setattr(topic_lists, "TOPIC_NAMES_PER_TURN", 50)
        follower, asker = Client(broker), Client(broker)
        first = await watch(follower, "public/default/many-.*")
        assert list(first.topic) == []
        counts = count_per_turn(monkeypatch)
        names = await create_many(broker, 300)
        asker.send(list_command("public/default/.*"))
        answer = await asker.take(Command.GET_TOPICS_OF_NAMESPACE_RESPONSE)
        assert list(answer.getTopicsOfNamespaceResponse.topics) == [f"{PREFIX}first", *names]
        assert max(counts) <= 50
        told: list[str] = []
        while len(told) < len(names):
            change = await update(follower)
            told += change.new_topics
        assert (sorted(told), change.topics_hash) == (names, topics_hash(names))
        for name in names[:200]:
            await broker.metadata.delete(managed_ledger_path(TopicName.parse(name)))
        gone: list[str] = []
        while len(gone) < 200:
            change = await update(follower)
            gone += change.deleted_topics
        assert (sorted(gone), change.topics_hash) == (names[:200], topics_hash(names[200:]))

    run()


@scenario()
async def test_a_client_that_leaves_while_its_topics_are_found_leaves_nothing(broker) -> None:
    await create(broker, "a-1")
    client = Client(broker)
    client.send(watch_command(ALL))
    await asyncio.sleep(0)
    client.hang_up()
    await asyncio.sleep(TOPIC_FEED_LINGER_SECONDS + 0.01)
    assert not broker.broker.topic_feeds._feeds


# -- what very many patterns keep ----------------------------------------------------------------


@scenario()
async def test_equal_lists_are_one_however_many_patterns_find_them(broker) -> None:
    await create(broker, "a-1", "a-2", "b")
    clients = [Client(broker) for _ in range(2)]
    patterns = [f"public/default/{'(' * n}a.*{')' * n}" for n in range(10)]
    patterns += [f"public/default/{'(' * n}.*{')' * n}" for n in range(10)]
    for number, pattern in enumerate(patterns):
        await watch(clients[number % 2], pattern, watcher_id=number)
    feed = broker.broker.topic_feeds.of("public/default")

    def lists() -> list[int]:
        return [len(found.topics) for found in {each.found for each in feed._selections.values()}]

    assert sorted(lists()) == [2, 3]
    await create(broker, "a-3")
    for client in clients:
        for _ in range(10):
            await update(client)
    assert sorted(lists()) == [3, 4]


@scenario()
async def test_lists_keep_their_bytes_as_long_as_there_is_room(broker, monkeypatch) -> None:
    monkeypatch.setattr(topic_encodings, "TOPIC_LISTS_ENCODED_BYTES_MAX", 10_000)
    await create_many(broker, 200)
    client = Client(broker)
    for number in range(100):
        client.send(list_command(f"public/default/many-.*{number % 10}{number // 10}?"))
        await client.take(Command.GET_TOPICS_OF_NAMESPACE_RESPONSE)
        client.send(watch_command(f"public/default/many-.*[^{number % 10}]$", number))
        await client.take(Command.WATCH_TOPIC_LIST_SUCCESS)
    feeds = broker.broker.topic_feeds
    selections = feeds.of("public/default")._selections.values()
    kept = {each.found: each.found.encoded_bytes for each in selections}
    assert 0 < sum(kept.values()) <= feeds._encodings.bytes <= 10_000


def test_a_list_that_nobody_has_any_more_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_encodings, "TOPIC_LISTS_ENCODED_BYTES_MAX", 10)
    encodings = topic_encodings.Encodings()
    one, two, three = (TopicList([], "") for _ in range(3))
    forgot: list[TopicList] = []
    monkeypatch.setattr(TopicList, "forget_bytes", lambda self: forgot.append(self))
    encodings.used(one, 4)
    encodings.used(two, 4)
    encodings.used(one, 5)  # asked for once more, in another form
    assert (encodings.bytes, forgot) == (9, [])
    encodings.used(three, 2)
    assert (encodings.bytes, forgot) == (7, [two])
    del one
    assert encodings.bytes == 2
    encodings.used(three, 20)
    assert (encodings.bytes, forgot) == (0, [two, three])


@pytest.mark.parametrize("mode", ["PERSISTENT", "NON_PERSISTENT", "ALL"])
def test_a_namespace_that_does_not_exist_has_no_topics(mode: str) -> None:
    @scenario(rules=Rules(frozenset({"root"})))
    async def run(broker) -> None:
        for role, answered in (("root", True), ("stranger", False)):
            client = Client(broker, principal=Principal(role))
            for number in range(3):  # first the rights are read, then they are known
                command = list_command(f"missing{number}/at-all/.*")
                command.getTopicsOfNamespace.mode = command.getTopicsOfNamespace.Mode.Value(mode)
                client.send(command, command)
                for _ in range(2):
                    answer = await client.take(
                        Command.GET_TOPICS_OF_NAMESPACE_RESPONSE, Command.ERROR
                    )
                    found = answer.getTopicsOfNamespaceResponse
                    assert answer.HasField("getTopicsOfNamespaceResponse") == answered
                    assert list(found.topics) == []
                    if not answered:
                        assert answer.error.error == ServerError.AuthorizationError

    run()
