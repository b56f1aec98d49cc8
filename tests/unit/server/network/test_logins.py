"""Tests of logins and of the end of login sessions, with a clock that the tests set."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sim.scheduler import SimLoop

from broker_lite.errors import (
    IllegalSaslStateError,
    SaslAuthenticationError,
    UnacceptableCredentialError,
    UnsupportedSaslMechanismError,
)
from broker_lite.model import LOGIN_MECHANISMS, PLAIN, ScramMechanism
from broker_lite.security.bearer import CheckedToken, bearer_message
from broker_lite.security.login_failures import DELAY_S
from broker_lite.security.plain import plain_message
from broker_lite.security.scram import (
    ScramClient,
    ScramCredential,
    UserCredentials,
    derive_keys,
)
from broker_lite.server.network.context import ANONYMOUS, Session
from broker_lite.server.network.logins import LoginAnswer, Logins, is_private

SHA_256 = ScramMechanism.SHA_256
SALT = b"0123456789abcdef"


class Time:
    """A clock that stands still until a test sets ``now``, in ms."""

    now = 1000

    def now_ms(self) -> int:
        return self.now

    def monotonic_ms(self) -> int:
        return self.now


class Socket:
    """Stands for a client's connection, and records why the broker closed it."""

    closed = False
    reason = ""

    def close(self, reason: str) -> None:
        self.closed, self.reason = True, reason


def credential(*passwords: str, old_until_ms: int = 0) -> ScramCredential:
    pairs = tuple(derive_keys(SHA_256, each, SALT, 4096).pair() for each in passwords)
    return ScramCredential(SALT, 4096, pairs, old_until_ms)


class World:
    """Logins of the users alice and bob, and a session of a client that has not logged in."""

    def __init__(self, **options: Any) -> None:
        self.clock = Time()
        self.users: dict[str, UserCredentials] = {
            "alice": {SHA_256: credential("a")},
            "bob": {SHA_256: credential("b")},
        }
        clock: Any = self.clock
        self.logins = Logins(
            LOGIN_MECHANISMS, clock=clock, users=lambda: self.users, salt_key=b"k", **options
        )
        self.session = Session(
            1, "127.0.0.1:40000", takes_logins=True, needs_login=True, is_encrypted=True
        )
        self.socket = Socket()

    def step(self, message: bytes) -> bytes:
        return asyncio.run(self.logins.step(self.session, message)).message

    def send_once(self, mechanism: str, message: bytes) -> None:
        """Log in with a mechanism that needs only one message."""
        self.logins.choose(self.session, mechanism)
        assert self.step(message) == b""
        self.logins.watch(self.session, self.socket)

    def log_in(self, user: str, password: str) -> None:
        client = ScramClient(SHA_256, user, password, "nonce")
        self.logins.choose(self.session, SHA_256)
        challenge = self.step(client.first())
        client.verify(self.step(client.final(challenge)))
        self.logins.watch(self.session, self.socket)


def test_login_sets_the_principal_of_the_session() -> None:
    world = World()
    assert world.session.principal == ANONYMOUS
    world.log_in("alice", "a")
    assert (world.session.principal, world.session.needs_login) == ("User:alice", False)


@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("nobody", "a")])
def test_failed_login_leaves_the_session_anonymous(user: str, password: str) -> None:
    world = World()
    with pytest.raises(SaslAuthenticationError):
        world.log_in(user, password)
    assert (world.session.principal, world.session.needs_login) == (ANONYMOUS, True)


def test_broker_accepts_at_most_eight_requests_of_three_apis_before_login() -> None:
    world = World()
    refused = [key for key in range(100) if Logins().why_refused(Session(1, "::1:1"), key, 10)]
    assert set(range(100)) - set(refused) == {17, 18, 36}
    assert "16384" in world.logins.why_refused(world.session, 36, 20_000)
    for _ in range(7):
        assert world.logins.why_refused(world.session, 18, 10) == ""
    assert "more than 8 requests" in world.logins.why_refused(world.session, 18, 10)


def test_connection_of_a_deleted_user_is_closed() -> None:
    world = World()
    world.log_in("alice", "a")
    world.logins.sweep()
    assert not world.socket.closed
    del world.users["alice"]
    world.logins.sweep()
    assert world.socket.closed
    assert "User:alice" in world.socket.reason


def test_old_password_and_sessions_opened_with_it_end_with_the_password_rotation() -> None:
    world = World()
    world.users["alice"] = {SHA_256: credential("new", "a", old_until_ms=2000)}
    world.log_in("alice", "a")
    world.logins.sweep()
    assert not world.socket.closed
    world.clock.now = 2000
    world.logins.sweep()
    assert world.socket.closed
    with pytest.raises(SaslAuthenticationError):
        world.log_in("alice", "a")
    world.log_in("alice", "new")


def test_client_must_log_in_again_as_the_same_user_after_its_session_lifetime() -> None:
    world = World(reauth_ms=500)
    world.log_in("alice", "a")
    world.clock.now += 500
    world.logins.sweep()
    assert world.session.needs_login
    with pytest.raises(SaslAuthenticationError, match="User:bob"):
        world.log_in("bob", "b")
    assert (world.session.principal, world.session.needs_login) == ("User:alice", True)
    world.log_in("alice", "a")
    assert not world.session.needs_login


def test_password_of_sasl_plain_is_checked_against_the_scram_keys() -> None:
    world = World()
    world.send_once("PLAIN", plain_message("alice", "a"))
    assert (world.session.principal, world.session.mechanism) == ("User:alice", "PLAIN")
    world.logins.sweep()
    assert not world.socket.closed
    world.users["alice"] = {SHA_256: credential("changed")}
    world.logins.sweep()
    assert world.socket.closed


class SlowThreads(SimLoop):
    """An event loop whose thread pools need ``check_s`` seconds of virtual time for each job."""

    check_s = 0.0

    def run_in_executor(self, executor: Any, work: Any, *arguments: Any) -> Any:
        done = self.create_future()
        self.call_later(self.check_s, done.set_result, work(*arguments))
        return done


@pytest.mark.parametrize("user", ["alice", "mallory"])
@pytest.mark.parametrize("check_s", [0.002, 0.04])
def test_response_to_every_failed_login_is_sent_after_the_same_time(
    user: str, check_s: float
) -> None:
    """Checking a password takes a different time for each user, and for users who do not exist.

    The response time must not reveal which users exist.
    """
    world, loop = World(), SlowThreads()  # type: ignore[abstract]
    loop.check_s = check_s
    world.logins.choose(world.session, PLAIN)

    async def fail() -> float:
        began_s = loop.time()
        with pytest.raises(SaslAuthenticationError):
            await world.logins.step(world.session, plain_message(user, "wrong"))
        assert loop.time() == began_s + check_s
        await world.logins.wait_after_failure(world.session, began_s)
        return loop.time() - began_s

    assert loop.run_until_complete(fail()) == pytest.approx(DELAY_S)
    loop.finish()


@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("nobody", "a")])
def test_failed_plain_login_is_logged_with_the_user_name_that_the_client_claimed(
    user: str, password: str
) -> None:
    world = World()
    with pytest.raises(SaslAuthenticationError, match="does not exist or the password is wrong"):
        world.send_once("PLAIN", plain_message(user, password))
    assert (world.session.principal, world.session.claimed) == (ANONYMOUS, user)
    with pytest.raises(IllegalSaslStateError):
        world.step(plain_message("alice", "a"))


def test_further_handshake_during_a_password_check_does_not_disturb_the_login() -> None:
    async def both() -> LoginAnswer:
        check = asyncio.create_task(world.logins.step(world.session, plain_message("alice", "a")))
        await asyncio.sleep(0)
        world.logins.choose(world.session, "PLAIN")
        return await check

    world = World()
    world.logins.choose(world.session, "PLAIN")
    assert asyncio.run(both()).is_done
    assert world.session.principal == "User:alice"


@pytest.mark.parametrize("mechanism", ["PLAIN", "OAUTHBEARER"])
def test_plain_and_oauthbearer_are_refused_without_tls(mechanism: str) -> None:
    world = World()
    world.session.is_encrypted = False
    with pytest.raises(UnsupportedSaslMechanismError, match=f"{mechanism}.*has no TLS.*SASL_SSL"):
        world.logins.choose(world.session, mechanism)


class Tokens:
    """A token issuer whose tokens consist of the user's name, and expire at ``ends_ms``."""

    ends_ms = 5000

    async def check(self, token: str) -> CheckedToken:
        return CheckedToken(token, self.ends_ms)

    async def refresh(self) -> None:
        raise AssertionError


def test_client_must_log_in_again_when_its_token_expires() -> None:
    world = World(issuer=Tokens())
    world.send_once("OAUTHBEARER", bearer_message("carol"))
    assert (world.session.principal, world.session.mechanism) == ("User:carol", "OAUTHBEARER")
    assert world.logins.lifetime_ms(world.session) == 4000
    world.logins.sweep()
    assert not world.session.needs_login
    world.clock.now = 5000
    world.logins.sweep()
    assert world.session.needs_login and not world.socket.closed
    Tokens.ends_ms = 9000
    with pytest.raises(SaslAuthenticationError, match="User:mallory"):
        world.send_once("OAUTHBEARER", bearer_message("mallory"))
    with pytest.raises(SaslAuthenticationError, match=r"\(PLAIN\)"):
        world.send_once("PLAIN", plain_message("alice", "a"))
    world.send_once("OAUTHBEARER", bearer_message("carol"))
    assert not world.session.needs_login
    assert World(issuer=Tokens(), reauth_ms=100).logins.lifetime_ms(world.session) == 8000


def test_session_ends_at_token_expiry_or_reauthentication_limit_whichever_is_earlier() -> None:
    world = World(issuer=Tokens(), reauth_ms=100)
    world.send_once("OAUTHBEARER", bearer_message("carol"))
    assert world.logins.lifetime_ms(world.session) == 100


def test_token_is_refused_if_its_user_is_reserved_for_brokers_or_not_the_sasl_authzid() -> None:
    def refuse(name: str) -> None:
        raise UnacceptableCredentialError(f"user name {name} is reserved")

    world = World(issuer=Tokens(), check_name=refuse)
    with pytest.raises(SaslAuthenticationError, match="reserved"):
        world.send_once("OAUTHBEARER", bearer_message("broker-1"))
    world = World(issuer=Tokens())
    with pytest.raises(SaslAuthenticationError, match="another user"):
        world.send_once("OAUTHBEARER", b"n,a=admin,\x01auth=Bearer carol\x01\x01")
    assert world.session.principal == ANONYMOUS


def test_login_message_without_a_handshake_is_refused() -> None:
    world = World()
    with pytest.raises(IllegalSaslStateError):
        world.step(b"n,,n=alice,r=x")
    with pytest.raises(UnsupportedSaslMechanismError, match="SCRAM-SHA-512"):
        world.logins.choose(world.session, "GSSAPI")
    with pytest.raises(IllegalSaslStateError, match=r"sasl.enabled.mechanisms"):
        Logins().choose(world.session, SHA_256)


@pytest.mark.parametrize(
    ("peer", "is_encrypted", "expected"),
    [("127.0.0.1:1", False, True), ("::1:1", False, True), ("10.0.0.1:1", False, False),
     ("10.0.0.1:1", True, True)],
)  # fmt: skip
def test_credentials_are_accepted_over_tls_or_loopback(
    peer: str, is_encrypted: bool, expected: bool
) -> None:
    assert is_private(Session(1, peer, is_encrypted=is_encrypted)) is expected
