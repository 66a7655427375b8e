"""Clients log in, show their credentials again, and are refused."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import bcrypt
import pytest

from pulsark.dispatch.connection.login import FAILED
from pulsark.errors import ServerError
from pulsark.limits import HANDSHAKE_SECONDS
from pulsark.security.limits import FAILED_LOGINS_PER_SECOND_MAX
from pulsark.security.principal import Principal
from pulsark.security.provider import Credentials, LoginError
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.frames import encode_command
from tests.support.broker_clients import BrokerInMemory, Client, scenario
from tests.support.logging_in import SECRET, inline, token

Command = pb.BaseCommand
PASSWORD = bcrypt.hashpw(b"123456", bcrypt.gensalt(4))
ON: dict[str, Any] = {
    "authenticationEnabled": True,
    "authenticationProviders": ("token", "basic"),
    "tokenSecretKey": inline(SECRET),
    "basicAuthConf": inline(b"admin:" + PASSWORD),
}
ADDRESS = "10.0.0.1:1234"


def connect(method: str | None = "token", data: bytes = b"", **fields: Any) -> pb.BaseCommand:
    command = Command(type=Command.CONNECT)
    command.connect.client_version = "test"
    command.connect.protocol_version = 21
    command.connect.feature_flags.supports_auth_refresh = fields.pop("refreshes", True)
    if method is not None:
        command.connect.auth_method_name = method
    command.connect.auth_data = data
    for name, value in fields.items():
        setattr(command.connect, name, value)
    return command


def response(data: bytes, method: str = "token") -> pb.BaseCommand:
    command = Command(type=Command.AUTH_RESPONSE)
    command.authResponse.response.auth_method_name = method
    command.authResponse.response.auth_data = data
    return command


def ping() -> pb.BaseCommand:
    command = Command(type=Command.PING)
    command.ping.SetInParent()
    return command


def new_client(broker: BrokerInMemory, *commands: pb.BaseCommand) -> Client:
    client = Client(broker, handshake=False)
    client.send(*commands)
    return client


def until(broker: BrokerInMemory, seconds: float, role: str = "orders") -> bytes:
    """A token that expires so soon."""
    return token({"sub": role, "exp": broker.broker.clock.now_ms() / 1000 + seconds})


async def idle(client: Client, seconds: float) -> None:
    """Time in which the client does nothing but answer pings."""
    while seconds > 0:
        await asyncio.sleep(min(seconds, 5.0))
        client.has(Command.PING)
        seconds -= 5.0


async def refused(client: Client) -> None:
    error = (await client.take(Command.ERROR)).error
    assert (error.request_id, error.error) == (2**64 - 1, ServerError.AuthenticationError)
    assert error.message == FAILED
    await asyncio.sleep(0.001)
    assert client.transport.closed


@scenario(**ON)
async def test_a_token_is_a_login_in_one_step(broker: BrokerInMemory) -> None:
    client = new_client(broker, connect(data=token()), ping())
    await client.take(Command.CONNECTED)
    await client.take(Command.PONG)
    assert client.connection.principal == Principal("orders", None, "token", None, ADDRESS)
    await client.produce("t", 1)


@scenario()
async def test_nobody_is_known_without_authentication(broker: BrokerInMemory) -> None:
    client = new_client(broker, connect("token", b"anything", original_principal="x"))
    await client.take(Command.CONNECTED)
    assert client.connection.principal is None
    client.send(response(b""))
    await asyncio.sleep(0.001)
    assert client.transport.closed


@scenario(**ON)
async def test_a_password_is_verified_while_nothing_is_read(broker: BrokerInMemory) -> None:
    client = new_client(broker, connect("basic", b"admin:123456"), ping())
    assert client.transport.paused
    assert not client.connection.is_open
    await client.take(Command.CONNECTED)
    await client.take(Command.PONG)
    assert client.connection.principal == Principal("admin", None, "basic", None, ADDRESS)
    assert not client.transport.paused
    await client.produce("t", 1)


@pytest.mark.parametrize(
    ("method", "data"),
    [
        ("token", b""),
        ("token", b"x.y.z"),
        ("basic", b"admin:1234567"),
        ("basic", b"nobody:123456"),
        ("none", b""),
        ("", b""),
        (None, b""),
        ("sasl", token()),
    ],
)
@scenario(**ON)
async def test_all_are_refused_in_the_same_words(
    broker: BrokerInMemory, method: str | None, data: bytes
) -> None:
    client = new_client(broker, connect(method, data), ping())
    await refused(client)
    assert not client.has(Command.PONG)
    assert len(broker.broker.connections) == 0


@scenario(**ON, anonymousUserRole="nobody")
async def test_a_method_that_is_not_there_is_anonymous(broker: BrokerInMemory) -> None:
    for method in ("none", "", None, "unknown"):
        client = new_client(broker, connect(method, token()))
        await client.take(Command.CONNECTED)
        assert client.connection.principal == Principal("nobody", None, "none", None, ADDRESS)
    await refused(new_client(broker, connect("token", b"forged")))


@scenario(**ON, anonymousUserRole="nobody")
async def test_old_clients_say_their_method_by_a_number(broker: BrokerInMemory) -> None:
    client = new_client(broker, connect(None, auth_method=pb.AuthMethodAthens))
    await client.take(Command.CONNECTED)
    assert client.connection.principal is not None


@scenario(**ON, anonymousUserRole="nobody")
async def test_a_client_without_a_login_keeps_no_memory(broker: BrokerInMemory) -> None:
    client = new_client(broker, connect("m" * 30_000, b"d" * 30_000))
    await client.take(Command.CONNECTED)
    assert client.connection.login is not None
    assert len(client.connection.login._method) <= 64
    client.send(response(b"x", ""))
    client.send(ping())
    await client.take(Command.PONG)


@scenario(**ON)
async def test_nothing_comes_before_the_login(broker: BrokerInMemory) -> None:
    for command in (ping(), response(token())):
        client = new_client(broker, command)
        await asyncio.sleep(0.001)
        assert client.transport.closed


@scenario(**ON)
async def test_a_frame_is_small_until_the_client_is_known(broker: BrokerInMemory) -> None:
    client = Client(broker, handshake=False)
    client.send_bytes(encode_command(connect("token", b"x" * 70_000)))
    await asyncio.sleep(0.001)
    assert client.transport.closed
    assert not client.has(Command.CONNECTED)


class Slow:
    """Answers when it is told to."""

    name, method, scheme = "slow", "slow", ""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Principal] = asyncio.get_running_loop().create_future()

    async def log_in(self, credentials: Credentials) -> Principal:
        return await asyncio.shield(self.answer)


def with_slow(broker: BrokerInMemory) -> Slow:
    slow = Slow()
    assert broker.broker.logins is not None
    broker.broker.logins._providers = [slow]
    return slow


@scenario(**ON)
async def test_a_provider_that_never_answers_costs_the_client_its_connection(
    broker: BrokerInMemory,
) -> None:
    with_slow(broker)
    client = new_client(broker, connect("slow"), ping())
    await asyncio.sleep(HANDSHAKE_SECONDS - 0.1)
    assert not client.transport.closed
    assert client.transport.paused
    await asyncio.sleep(0.2)
    assert client.transport.closed
    assert not client.has(Command.PONG)


@scenario(**ON)
async def test_a_client_that_is_gone_meanwhile_is_not_let_in(broker: BrokerInMemory) -> None:
    slow = with_slow(broker)
    client = new_client(broker, connect("slow"))
    await asyncio.sleep(0.001)
    client.hang_up()
    await asyncio.sleep(0.001)
    slow.answer.set_result(Principal("late"))
    await asyncio.sleep(0.001)
    assert client.connection.principal is None
    assert client.connection.is_closed


@scenario(**ON)
async def test_a_slow_refusal(broker: BrokerInMemory) -> None:
    slow = with_slow(broker)
    client = new_client(broker, connect("slow"), ping())
    await asyncio.sleep(0.5)
    slow.answer.set_exception(LoginError("password", "no"))
    await refused(client)


@scenario(**ON)
async def test_many_failures_of_one_address_are_told_later(broker: BrokerInMemory) -> None:
    for _ in range(FAILED_LOGINS_PER_SECOND_MAX):
        await refused(new_client(broker, connect("token", b"forged")))
    for late in (connect("token", b"forged"), connect("basic", b"admin:wrong")):
        client = new_client(broker, late, ping())
        await asyncio.sleep(0.9)
        assert not client.has(Command.ERROR)
        assert client.transport.paused
        await asyncio.sleep(0.2)
        await refused(client)
        for _ in range(FAILED_LOGINS_PER_SECOND_MAX):
            broker.broker.logins.delay_s("10.0.0.1")  # type: ignore[union-attr]
    gone = new_client(broker, connect("token", b"forged"))
    gone.hang_up()
    await asyncio.sleep(2)
    assert not gone.has(Command.ERROR)


@scenario(**ON, maxFailedLoginsPerSecondPerIp=10)
async def test_a_flood_of_failures_leaves_its_address_some_logins_a_second(
    broker: BrokerInMemory,
) -> None:
    logins = broker.broker.logins
    assert logins is not None
    early = [new_client(broker) for _ in range(4)]
    for client in early[:2]:
        client.send(connect("token", b"forged"))
        await refused(client)
    assert sum(logins.failures.values()) == 2
    for client in early[2:]:  # they came before anybody had failed, and are not looked at
        client.send(connect("token", b"forged"))
        assert client.transport.closed
        assert not client.has(Command.ERROR)
    crowded_out = new_client(broker, connect(data=token()))
    assert crowded_out.transport.closed
    assert crowded_out.connection.is_closed
    crowded_out.hang_up()
    assert sum(logins.failures.values()) == 2
    await asyncio.sleep(0.11)
    for _ in range(3):  # each gives its place to the next one
        await new_client(broker, connect(data=token())).take(Command.CONNECTED)
    assert logins.trials["binary"].refused == 3


@scenario(**ON)
async def test_credentials_are_in_no_log(broker: BrokerInMemory) -> None:
    records: list[logging.LogRecord] = []
    handler = logging.Handler(0)
    handler.emit = records.append  # type: ignore[method-assign]
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(0)
    try:
        for method, data in (
            ("token", b"CANARY.CANARY.CANARY"),
            ("basic", b"admin:CANARY"),
            ("CANARY" * 1000, b"CANARY"),
        ):
            await refused(new_client(broker, connect(method, data)))
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
    texts = [record.getMessage() for record in records]
    assert len([text for text in texts if "failed" in text]) == 3
    assert all(text.count("CANARY") <= 4 for text in texts)
    assert not [text for text in texts if "CANARY.CANARY" in text or ":CANARY" in text]


# -- credentials that expire --------------------------------------------------------------------


@pytest.mark.feature("F81")
@pytest.mark.command("AUTH_CHALLENGE", "AUTH_RESPONSE")
@scenario(**ON)
async def test_a_client_whose_token_expires_is_asked_and_goes_on(broker: BrokerInMemory) -> None:
    client = new_client(broker, connect(data=until(broker, 30)))
    await client.take(Command.CONNECTED)
    await client.produce("t", 1)
    await idle(client, 29)
    assert not client.has(Command.AUTH_CHALLENGE)
    challenge = (await client.take(Command.AUTH_CHALLENGE, seconds=2)).authChallenge
    assert challenge.protocol_version == 21
    assert challenge.challenge.auth_method_name == "token"
    assert challenge.challenge.auth_data == b"PulsarAuthRefresh"
    await client.publish(1)  # the answer is on its way, and publishing goes on
    client.send(response(until(broker, 100)))
    await idle(client, 99)
    assert not client.transport.closed
    assert not client.has(Command.ERROR)
    await client.publish(2)
    await client.take(Command.AUTH_CHALLENGE, seconds=2)


@scenario(**ON)
async def test_who_does_not_answer_is_closed(broker: BrokerInMemory) -> None:
    client = new_client(broker, connect(data=until(broker, 5)))
    await client.take(Command.AUTH_CHALLENGE, seconds=6)
    await idle(client, 59)
    assert not client.transport.closed
    await asyncio.sleep(2)
    assert client.transport.closed
    assert not client.has(Command.ERROR)


@scenario(**ON)
async def test_who_answers_with_what_has_expired_is_asked_again(broker: BrokerInMemory) -> None:
    """The client's clock may be behind, or it counts from when its token came."""
    client = new_client(broker, connect(data=until(broker, 5)))
    await client.take(Command.AUTH_CHALLENGE, seconds=6)
    for pause in (1, 2):
        client.send(response(until(broker, 0)))
        await asyncio.sleep(pause - 0.1)
        assert not client.has(Command.AUTH_CHALLENGE)
        await client.take(Command.AUTH_CHALLENGE, seconds=0.2)
    client.send(response(until(broker, 100)))
    await idle(client, 99)
    assert not client.transport.closed
    assert not client.has(Command.ERROR)
    assert not client.has(Command.AUTH_CHALLENGE)


@scenario(**ON)
async def test_who_only_has_what_has_expired_is_refused_in_the_end(broker: BrokerInMemory) -> None:
    expired = until(broker, 5)
    client = new_client(broker, connect(data=expired))
    loop = asyncio.get_running_loop()
    start, asked = loop.time(), 0
    while not client.has(Command.ERROR):
        assert loop.time() - start < 5 + 60
        await asyncio.sleep(0.1)
        if client.has(Command.AUTH_CHALLENGE):
            await client.take(Command.AUTH_CHALLENGE)
            asked += 1
            client.send(response(expired))
    assert asked == 6  # after 0, 1, 3, 7, 15 and 31 seconds
    await refused(client)


@scenario(**ON)
async def test_what_has_expired_is_refused_at_once_where_nobody_asked(
    broker: BrokerInMemory,
) -> None:
    client = new_client(broker, connect(data=until(broker, 50)))
    await client.take(Command.CONNECTED)
    client.send(response(until(broker, -1)))
    await refused(client)


@pytest.mark.parametrize("fields", [{"refreshes": False}, {"original_principal": "x"}])
@scenario(**ON)
async def test_who_cannot_answer_is_closed_at_once(
    broker: BrokerInMemory, fields: dict[str, Any]
) -> None:
    client = new_client(broker, connect(data=until(broker, 5), **fields))
    await client.take(Command.CONNECTED)
    await idle(client, 4.9)
    assert not client.transport.closed
    await asyncio.sleep(0.2)
    assert client.transport.closed
    assert not client.has(Command.AUTH_CHALLENGE)


@scenario(**ON)
async def test_another_role_is_another_client(broker: BrokerInMemory) -> None:
    client = new_client(broker, connect(data=until(broker, 5)))
    await client.take(Command.AUTH_CHALLENGE, seconds=6)
    client.send(response(until(broker, 60, "admin")))
    await asyncio.sleep(0.001)
    assert client.transport.closed
    assert not client.has(Command.ERROR)


@pytest.mark.parametrize("method", ["token", "basic", ""])
@scenario(**ON)
async def test_a_bad_answer_is_a_failed_login(broker: BrokerInMemory, method: str) -> None:
    client = new_client(broker, connect(data=until(broker, 5)))
    await client.take(Command.AUTH_CHALLENGE, seconds=6)
    client.send(response(b"admin:123456", method))
    await refused(client)


@scenario(**ON)
async def test_a_client_may_refresh_on_its_own_once_a_second(broker: BrokerInMemory) -> None:
    client = new_client(broker, connect(data=until(broker, 5)))
    await client.take(Command.CONNECTED)
    client.send(response(until(broker, 20)), response(until(broker, 500)))
    await idle(client, 10)
    assert not client.has(Command.AUTH_CHALLENGE)
    await client.take(Command.AUTH_CHALLENGE, seconds=11)
    client.send(response(until(broker, 500)))
    await idle(client, 400)
    assert not client.transport.closed


@scenario(**ON)
async def test_a_slow_refresh_is_one_at_a_time(broker: BrokerInMemory) -> None:
    slow = with_slow(broker)
    slow.answer.set_result(Principal("a", None, "slow", None))
    client = new_client(broker, connect("slow"))
    await client.take(Command.CONNECTED)
    slow.answer = asyncio.get_running_loop().create_future()
    client.send(response(b"", "slow"))
    await asyncio.sleep(5)
    client.send(response(b"", "slow"), ping())
    await client.take(Command.PONG)  # it works on meanwhile
    assert len(client.connection.requests) == 1
    expires = broker.broker.clock.now_ms() + 3000
    slow.answer.set_result(Principal("a", None, "slow", expires))
    await client.take(Command.AUTH_CHALLENGE, seconds=5)
    slow.answer = asyncio.get_running_loop().create_future()
    slow.answer.set_exception(LoginError("password", "no"))
    client.send(response(b"", "slow"))
    await refused(client)


@scenario(**ON)
async def test_a_clock_that_is_put_forward_is_noticed(broker: BrokerInMemory) -> None:
    client = new_client(broker, connect(data=until(broker, 100_000)))
    await client.take(Command.CONNECTED)
    broker.broker.clock.step_ms = 200_000_000  # type: ignore[attr-defined]
    await idle(client, 3595)
    await client.take(Command.AUTH_CHALLENGE, seconds=6)


# -- proxies ------------------------------------------------------------------------------------


@scenario(**ON)
async def test_whom_a_proxy_names_is_believed(broker: BrokerInMemory) -> None:
    client = new_client(broker, connect(data=token(), original_principal="alice"))
    await client.take(Command.CONNECTED)
    assert client.connection.principal == Principal("orders", "alice", "token", None, ADDRESS)
    await refused(new_client(broker, connect(data=token(), original_principal="a\x00b")))


@scenario(**ON, authenticateOriginalAuthData=True)
async def test_what_a_proxy_hands_on_may_be_verified(broker: BrokerInMemory) -> None:
    def through_proxy(method: str, data: bytes, name: str = "text") -> pb.BaseCommand:
        return connect(
            data=until(broker, 60, "proxy"),
            original_principal=name,
            original_auth_method=method,
            original_auth_data=data.decode(),
        )

    for method, data, role in (
        ("basic", b"admin:123456", "admin"),
        ("token", until(broker, 5), "orders"),
    ):
        client = new_client(broker, through_proxy(method, data))
        await client.take(Command.CONNECTED)
        principal = client.connection.principal
        assert principal is not None
        assert (principal.role, principal.original) == ("proxy", role)
    await asyncio.sleep(5.1)
    assert client.transport.closed  # the shorter of the two has expired
    for method, data in (("basic", b"admin:wrong"), ("token", b""), ("", b""), ("none", b"")):
        await refused(new_client(broker, through_proxy(method, data)))
    websocket = "__websocket_dummy_original_principle"
    client = new_client(broker, through_proxy("", b"", websocket))
    await client.take(Command.CONNECTED)
    assert client.connection.principal is not None
    assert client.connection.principal.original == websocket


@scenario(**ON, authenticateOriginalAuthData=True)
async def test_a_proxy_cannot_prolong_what_its_client_showed(broker: BrokerInMemory) -> None:
    asked = connect(
        data=until(broker, 60, "proxy"),
        original_principal="orders",
        original_auth_method="token",
        original_auth_data=until(broker, 5).decode(),
    )
    client = new_client(broker, asked)
    await client.take(Command.CONNECTED)
    client.send(response(until(broker, 1000, "proxy")))
    await asyncio.sleep(4)
    assert not client.transport.closed
    await asyncio.sleep(1.1)
    assert client.transport.closed


@scenario(**ON, authenticateOriginalAuthData=True, anonymousUserRole="nobody")
async def test_a_client_without_credentials_behind_a_proxy(broker: BrokerInMemory) -> None:
    client = new_client(broker, connect(data=token(), original_principal="x"))
    await client.take(Command.CONNECTED)
    assert client.connection.principal == Principal("nobody", "nobody", "none", None, ADDRESS)


@pytest.mark.parametrize(
    ("role", "fields", "refusal"),
    [
        ("orders", {}, ""),
        ("orders", {"original_principal": "orders"}, ""),
        ("orders", {"original_principal": "other"}, "Invalid roles."),
        ("proxy", {}, "Invalid roles."),
        ("proxy", {"original_principal": "proxy"}, "Invalid roles."),
        ("proxy", {"original_principal": "orders", "proxy_version": "4"}, ""),
        ("orders", {"original_principal": "__websocket_dummy_original_principle"}, ""),
        (
            "orders",
            {"proxy_version": "4"},
            "Must not set proxyVersion without connecting as a ProxyRole.",
        ),
    ],
)
def test_with_authorization_only_proxies_ask_for_others(
    role: str, fields: dict[str, Any], refusal: str
) -> None:
    @scenario(**ON, authorizationEnabled=True, proxyRoles=("proxy",))
    async def run(broker: BrokerInMemory) -> None:
        client = new_client(broker, connect(data=token({"sub": role}), **fields))
        answer = await client.take(Command.CONNECTED, Command.ERROR)
        if answer.type == Command.ERROR:
            assert answer.error.error == ServerError.AuthorizationError
        assert answer.error.message == refusal

    run()
