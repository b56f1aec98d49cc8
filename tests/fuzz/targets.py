"""The targets of ``make fuzz``: each feeds random input to one parser or state machine.

A target is a class with ``once(rng)``, which returns the input's size in bytes. ``once`` raises an
error if the code raises an undeclared error, or accepts a login without the right password.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import hashlib
import logging
import random
from collections.abc import Coroutine
from typing import Any

from sim.scheduler import SimLoop
from support.access_world import NAMES, AccessWorld, Reply
from support.api_frames import request_frame
from support.token_issuer import AUDIENCE, ISSUER, Issuer

from broker_lite.config import BrokerConfig
from broker_lite.errors import InvalidConfigError, ProtocolError, SaslAuthenticationError
from broker_lite.model import OAUTHBEARER, PLAIN, TLS_ONLY, ScramMechanism
from broker_lite.security.bearer import CheckedToken, bearer_message, end_of_token, parse_bearer
from broker_lite.security.certificate_names import parse_rules, principal_of
from broker_lite.security.jaas import parse_jaas
from broker_lite.security.plain import parse_plain, plain_message
from broker_lite.security.scram import ScramClient, ScramCredential, derive_keys
from broker_lite.security.tokens import TokenRules, check_token, parse_keys
from broker_lite.server.clock import Clock
from broker_lite.server.dispatch import Dispatcher
from broker_lite.server.metrics import Metrics
from broker_lite.server.network.connection import ResponseSlot
from broker_lite.server.network.context import ANONYMOUS, Session
from broker_lite.server.network.listener import Listener
from broker_lite.server.network.logins import BEFORE_LOGIN, Logins
from broker_lite.wire.api import VERSIONS, ApiKey, encode_call
from broker_lite.wire.calls.envelope import EnvelopeRequest
from broker_lite.wire.frame import SCRATCH_BYTES, FrameReceiver
from broker_lite.wire.primitives import Reader
from fuzz.mutate import mutated, mutated_text

SHA_256 = ScramMechanism.SHA_256
USER, PASSWORD = "alice", "of alice"
FRAME_BYTES_MAX = 16 << 10
SHORT_NAME = 12
"""Maximum length of a name that is matched with a random pattern.

On such a short name, even a pattern of exponential cost takes microseconds.
"""
SALT = b"0123456789abcdef"
ITERATIONS = 4096
KEYS = {
    password: derive_keys(SHA_256, password, SALT, ITERATIONS) for password in (PASSWORD, "wrong")
}
"""The keys of a right and of a wrong password. A client with keys sends the same messages as one
with the password, and does not spend a millisecond on deriving the keys.
"""
LOGINS_A_WORLD = 2000
"""Number of frame sequences after which a target creates a new broker with a small state."""


class Target:
    """A fuzz target.

    If ``is_remote``, its input comes from the network and must not exhaust memory. ``fixed_bytes``
    is the memory that the target may allocate for an input of any size. ``together`` is the number
    of inputs in a call of ``all_at_once``: more than 1 if inputs spend their time waiting.
    """

    is_remote = True
    fixed_bytes = 32 << 10
    together = 1

    def once(self, rng: random.Random) -> int:
        """Feed one random input to the code; return its size in bytes."""
        raise NotImplementedError

    def all_at_once(self, rngs: list[random.Random]) -> int:
        """Feed several random inputs to the code; return their size in bytes."""
        return sum(map(self.once, rngs))

    def close(self) -> None:
        """Close the sockets of the target. By default, a target has no socket."""


class Jaas(Target):
    """Tests the parser of ``sasl.jaas.config``, a setting of clients."""

    is_remote = False
    _TEXT = (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="alice" password="a;b=c\\"d";'
    )
    _WORDS = (
        "required",
        "password",
        "com.sun.security.auth.module.JndiLoginModule",
        "kafkashaded.",
    )

    def once(self, rng: random.Random) -> int:
        text = mutated_text(self._TEXT, rng, self._WORDS)
        with contextlib.suppress(InvalidConfigError):
            login = parse_jaas(text)
            assert "of alice" not in repr(login)
        return len(text)


class Names(Target):
    """Tests the mapping of certificate names to principals (``ssl.principal.mapping.rules``).

    A broker's operator writes the rules, and clients send the names. A random rule may have nested
    repetitions, which take exponential time on a long name, so random rules map only short names.
    """

    is_remote = False
    _NAME = "CN=broker-1,OU=logbus,O=Example\\, Inc.,C=DE"
    _RULES = "RULE:^CN=(broker-[0-9]+)$/$1/,RULE:^CN=(.*?),OU=(.*?)$/$1@$2/L,DEFAULT"

    def once(self, rng: random.Random) -> int:
        name = mutated_text(self._NAME, rng, ("CN=", "+", "#", ",CN=broker-9"))
        text = mutated_text(self._RULES, rng, ("RULE:", "(a", "$9", "/U", "DEFAULT"), 2)
        try:
            rules = parse_rules(text)
        except InvalidConfigError:
            rules = parse_rules(self._RULES)
        for each, known in ((name[:SHORT_NAME], rules), (name, parse_rules(self._RULES))):
            with contextlib.suppress(SaslAuthenticationError):
                assert principal_of(each, known).startswith("User:")
        only = parse_rules("RULE:^CN=(broker-[0-9]+)$/$1/")
        with contextlib.suppress(SaslAuthenticationError):
            # A rule must match the whole name: part of a name must not become a broker's name.
            assert principal_of(name, only) == f"User:{name.removeprefix('CN=')}"
        return len(name) + len(text)


class Frames(Target):
    """Tests the framing before a login: a stream of bytes, split at random places."""

    def __init__(self) -> None:
        self._scratch = bytearray(SCRATCH_BYTES)

    def once(self, rng: random.Random) -> int:
        frame = request_frame(ApiKey.API_VERSIONS, 3, NAMES)
        stream = mutated((len(frame).to_bytes(4, "big") + frame) * rng.randrange(1, 4), rng)
        receiver = FrameReceiver(FRAME_BYTES_MAX, scratch=self._scratch, grows=True)
        at = 0
        with contextlib.suppress(ProtocolError):
            while at < len(stream):
                if receiver.growth_bytes:
                    receiver.grow()
                space = receiver.buffer()
                count = min(len(space), len(stream) - at, rng.randrange(1, 200))
                space[:count] = stream[at : at + count]
                at += count
                for each in receiver.received(count):
                    assert len(each) <= FRAME_BYTES_MAX
        return len(stream)


class _Loop(SimLoop):
    """An event loop that runs the work of thread pools at once, in the loop's thread."""

    def run_in_executor(self, executor: Any, work: Any, *arguments: Any) -> Any:
        done = self.create_future()
        done.set_result(work(*arguments))
        return done


class _FuzzIssuer:
    """A token issuer for tests: an access token consists of the user's name alone."""

    async def check(self, token: str) -> CheckedToken:
        if token != USER:
            raise SaslAuthenticationError("another token")
        return CheckedToken(token, 1 << 42)

    async def refresh(self) -> None: ...


class _World(Target):
    """A simulated broker with an authorizer and logins, in virtual time."""

    def __init__(self) -> None:
        self.loop = _Loop()  # type: ignore[abstract]
        self._runs = 0
        self._begin()

    def _begin(self) -> None:
        self.loop = _Loop()  # type: ignore[abstract]
        world = self.world = AccessWorld()
        self.run(world.start())
        pair = KEYS[PASSWORD].pair()
        users = {USER: {SHA_256: ScramCredential(SALT, ITERATIONS, (pair,))}}
        logins = Logins(
            (SHA_256, *TLS_ONLY),
            clock=world.parts.clock,
            users=lambda: users,
            salt_key=b"k",
            issuer=_FuzzIssuer(),
        )
        self.parts = dataclasses.replace(world.parts, logins=logins)
        self.dispatcher = Dispatcher(self.loop, self.parts)

    def run(self, body: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(body)

    def count(self) -> None:
        self._runs += 1
        if self._runs % LOGINS_A_WORLD == 0:
            self.loop.finish()
            self._begin()

    async def send(self, session: Session, frame: bytes) -> Reply:
        """Pass one frame to the broker; a broken header closes the connection, as in production."""
        reply: Any = Reply(session)
        try:
            self.dispatcher.begin(memoryview(bytearray(frame)), reply)
        except ProtocolError as error:
            reply.refuse(str(error))
        await asyncio.wait_for(reply.done, 60)
        reply.closed = True
        return reply  # type: ignore[no-any-return]

    def frame(
        self, rng: random.Random, step: int, name: str, message: bytes, *, is_token: bool
    ) -> tuple[bytes, bool]:
        """Return a frame, and whether a correct client could send it at this step of the login.

        With ``is_token``, the frame is a SASL message without a header.
        """
        if is_token:
            sent = mutated(message, rng, 2) if rng.random() < 0.5 else message
            return sent, sent == message
        if rng.random() < 0.1:
            key = rng.choice(sorted(VERSIONS))
            version = rng.randrange(VERSIONS[key][0], VERSIONS[key][1] + 1)
            names = {**NAMES, "topic_id": "A" * 22}
            return mutated(request_frame(key, version, names), rng, 2), False
        if step == 0:
            version = rng.randrange(2)
            frame = request_frame(ApiKey.SASL_HANDSHAKE, version, NAMES, {"mechanism": name})
        else:
            changed = mutated(message, rng, 2) if rng.random() < 0.5 else message
            fields = {"auth_bytes": changed}
            frame = request_frame(ApiKey.SASL_AUTHENTICATE, 0, NAMES, fields)
        sent = mutated(frame, rng, 2) if rng.random() < 0.3 else frame
        return sent, sent == frame


class Sasl(_World):
    """Tests what clients send before they have logged in: broken login messages, and requests that
    need a login."""

    def once(self, rng: random.Random) -> int:
        self.count()
        size: int = self.run(self._sequence(rng))
        self.parts.logins.sweep()  # A broker does this every second.
        return size

    async def _sequence(self, rng: random.Random) -> int:
        session = Session(
            1, "127.0.0.1:4711", takes_logins=True, needs_login=True, is_encrypted=True
        )
        password = rng.choice((PASSWORD, "wrong"))
        client = ScramClient(SHA_256, USER, KEYS[password], "nonce")
        size, is_exact = 0, True
        name = rng.choice(("SCRAM-SHA-256", "SCRAM-SHA-256", "SCRAM-SHA-512", *TLS_ONLY, ""))
        message = {
            PLAIN: plain_message(USER, password),
            OAUTHBEARER: bearer_message(USER if password == PASSWORD else "another"),
        }.get(name, client.first())
        for step in range(rng.randrange(1, 6)):
            is_token = session.sends_tokens
            frame, intact = self.frame(rng, step, name, message, is_token=is_token)
            is_exact = is_exact and intact
            size += len(frame)
            reply = await self.send(session, frame)
            if session.principal != ANONYMOUS:
                assert session.principal == f"User:{USER}" and password == PASSWORD
                return size
            if reply.refusal or reply.closes:
                return size
            key = int.from_bytes(frame[:2], "big")
            assert is_token or key in BEFORE_LOGIN, f"API {key} was answered before the login"
            if step == 1 and is_exact and name == SHA_256 and is_token:
                with contextlib.suppress(SaslAuthenticationError):
                    message = client.final(reply.frame[4:])
            elif step == 1 and is_exact and name == SHA_256:
                answer = Reader(memoryview(reply.frame), 8)
                if answer.i16() == 0 and answer.classic_nullable_string() is None:
                    with contextlib.suppress(SaslAuthenticationError):
                        message = client.final(bytes(answer.classic_view() or b""))
        return size


class Live(_World):
    """Tests socket connections that never log in. The listener and the dispatcher of a broker run
    in this process, on a real event loop.
    """

    # Answers to failed logins are delayed, by 100 ms or more.
    together = 50
    # Both ends of the connection, with the buffers of the client's streams, are in this process.
    fixed_bytes = 320 << 10

    def __init__(self) -> None:
        super().__init__()
        config = BrokerConfig(
            port=0, sasl_enabled_mechanisms=SHA_256, inter_broker_client_config="unread"
        )
        self._real = asyncio.new_event_loop()
        self._listener = Listener(config, clock=Clock(), metrics=Metrics())
        self._sessions: list[Session] = []
        self._live = Dispatcher(self._real, self.parts)
        self._real.run_until_complete(self._start())

    async def _start(self) -> None:
        def begin(frame: memoryview, reply: ResponseSlot) -> None:
            self._sessions.append(reply.session)
            self._live.begin(frame, reply)

        self._listener.start(self._real, begin)

    def once(self, rng: random.Random) -> int:
        return self.all_at_once([rng])

    def all_at_once(self, rngs: list[random.Random]) -> int:
        self._sessions.clear()
        size = sum(self._real.run_until_complete(self._connect_all(rngs)))
        self.parts.logins.sweep()  # A broker does this every second.
        return size

    async def _connect_all(self, rngs: list[random.Random]) -> list[int]:
        return await asyncio.gather(*map(self._connect, rngs))

    def close(self) -> None:
        self._listener.close()
        self._live.close()
        self._real.run_until_complete(asyncio.sleep(0))
        self._real.close()

    async def _connect(self, rng: random.Random) -> int:
        stream = self._stream(rng)
        # Clients of one address would use up its ports, because a closed connection keeps its port
        # for a minute.
        # Too many failures from one address also lengthen the delay of its next failure.
        address = f"127.{rng.randrange(1, 250)}.{rng.randrange(1, 250)}.1"
        reader, writer = await asyncio.open_connection(
            *self._listener.bound, local_addr=(address, 0)
        )
        try:
            # The broker closes the connection of a malformed frame at once.
            with contextlib.suppress(ConnectionError):
                async with asyncio.timeout(60):
                    at = 0
                    while at < len(stream):
                        count = rng.randrange(1, 400)
                        writer.write(stream[at : at + count])
                        await writer.drain()
                        at += count
                    writer.write_eof()
                    while await reader.read(65_536):
                        pass
        finally:
            writer.transport.abort()
        assert all(session.principal == ANONYMOUS for session in self._sessions)
        return len(stream)

    def _stream(self, rng: random.Random) -> bytes:
        """Return the bytes of one connection: up to ten frames of a login with a wrong password."""
        message = ScramClient(SHA_256, USER, "wrong", "nonce").first()
        stream = b""
        for step in range(rng.randrange(1, 11)):
            is_token = step > 0 and rng.random() < 0.3
            frame, _ = self.frame(rng, step, SHA_256, message, is_token=is_token)
            size = len(frame)
            if rng.random() < 0.05:
                size = rng.choice((-1, 0, 1, size + 7, 1 << 20, (1 << 31) - 1))
            stream += size.to_bytes(4, "big", signed=True) + frame
        return stream if rng.random() < 0.9 else mutated(stream, rng)


class Envelopes(_World):
    """Tests Envelope requests with broken contents, from brokers and from clients."""

    def once(self, rng: random.Random) -> int:
        self.count()
        key = rng.choice(sorted(VERSIONS))
        version = rng.randrange(VERSIONS[key][0], VERSIONS[key][1] + 1)
        inner = mutated(request_frame(key, version, self.world.names), rng, 3)
        principal = rng.choice(("User:bob", "User:broker-1", "", "User:*", "x" * 300))
        call = EnvelopeRequest(inner, principal, "10.0.0.9")
        frame = bytes(encode_call(call, 3, "c"))[4:]
        if rng.random() < 0.5:
            frame = mutated(frame, rng, 3)
        who = rng.choice((("User:broker-9", "BROKERS"), ("User:bob", "PLAINTEXT")))
        session = Session(1, "127.0.0.1:4711", who[1], who[0])
        before = len(self.world.snapshot.topics)
        self.run(self.send(session, frame))
        assert len(self.world.snapshot.topics) == before, "an Envelope changed the cluster"
        return len(frame)


class Tokens(Target):
    """Tests the checks of OAUTHBEARER: client messages, access tokens and key sets.

    Only tokens that the issuer signed with its own keys may pass.
    """

    # An input is a key set and a token. Parsing the key set takes most of this memory.
    fixed_bytes = 64 << 10
    _PARTS = (
        '{"alg":"ES256","kid":"first"}',
        '{"iss":"https://issuer.example","aud":"logbus","sub":"carol","exp":4000000000}',
    )
    _WORDS = ("none", "HS256", "jku", "x5u", "crit", "null", "-1", "[", "9" * 400, '"exp":1e999')

    def __init__(self) -> None:
        self._issuer = Issuer()
        self._set = self._issuer.key_set()
        self._keys = parse_keys(self._set)
        self._rules = TokenRules(ISSUER, (AUDIENCE,))
        self._sound = self._issuer.token(exp=4_000_000_000)

    def once(self, rng: random.Random) -> int:
        with contextlib.suppress(InvalidConfigError):
            parse_keys(mutated(self._set, rng))
        if rng.random() < 0.5:
            token, is_signed = mutated_text(self._sound, rng), True
        else:
            texts = (mutated_text(each, rng, self._WORDS) for each in self._PARTS)
            rows = [base64.urlsafe_b64encode(each.encode()).rstrip(b"=") for each in texts]
            token, is_signed = b".".join([*rows, b"AAAA"]).decode(), False
        message = mutated(b"n,,\x01auth=Bearer " + token.encode() + b"\x01\x01", rng, 2)
        with contextlib.suppress(SaslAuthenticationError):
            parse_bearer(message)
        end_of_token(token)
        with contextlib.suppress(SaslAuthenticationError):
            found = check_token(token, self._keys, self._rules, 1_900_000_000_000)
            assert is_signed and found.user == "carol", token
            signed, _, _ = token.rpartition(".")
            assert self._sound.startswith(f"{signed}."), token
        return len(message) + len(self._set)


class PlainMessages(Target):
    """Tests the parser of a client's SASL PLAIN message."""

    def once(self, rng: random.Random) -> int:
        message = mutated(plain_message(USER, PASSWORD), rng)
        with contextlib.suppress(SaslAuthenticationError):
            claim = parse_plain(message)
            assert claim.user and claim.password and "\0" not in claim.user + claim.password
            assert plain_message(*claim) == message or message.startswith(claim.user.encode())
        return len(message)


class ScramMessages(Target):
    """Tests the client's side of SCRAM against a broker that does not know the password.

    A tenth of the clients derive keys from the password. The others have the keys already, as
    Spark's executors do.
    """

    def once(self, rng: random.Random) -> int:
        derives = rng.random() < 0.1
        client = ScramClient(SHA_256, USER, PASSWORD if derives else KEYS[PASSWORD], "nonce")
        client.first()
        salt = base64.b64encode(rng.randbytes(16) if derives else SALT).decode()
        first = mutated(f"r=nonceserver,s={salt},i={ITERATIONS}".encode(), rng)
        proof = base64.b64encode(hashlib.sha256(first).digest())
        last = mutated(b"v=" + proof, rng)
        try:
            client.final(first)
            client.verify(last)
        except SaslAuthenticationError:
            return len(first) + len(last)
        raise AssertionError(f"the client accepted a broker without the keys: {first!r} {last!r}")


TARGETS: dict[str, type[Target]] = {
    "jaas": Jaas,
    "names": Names,
    "frames": Frames,
    "live": Live,
    "scram": ScramMessages,
    "plain": PlainMessages,
    "tokens": Tokens,
    "sasl": Sasl,
    "envelopes": Envelopes,
}
"""The targets, the fastest first."""
INPUTS = dict.fromkeys(TARGETS, 1_000_000) | {"live": 100_000}
"""The number of inputs of a complete run."""


def quiet() -> None:
    """Disable logging, because brokers log almost every random input as refused."""
    logging.disable(logging.CRITICAL)
