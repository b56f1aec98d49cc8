"""Tests of module-level locks of the client in a forked child process."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from broker_lite.client.in_place.disk_buffers import disk_buffers
from broker_lite.client.producing.producer import Producer
from broker_lite.client.transport import access_tokens
from broker_lite.client.transport.access_tokens import fresh_token, token_of
from broker_lite.client.transport.received_buffers import received_buffers
from broker_lite.config.client_security import ClientSecurity
from broker_lite.config.secret import Secret
from broker_lite.security.bearer import AccessToken


def ends_in_child(call: Callable[[], object]) -> bool:
    """Return whether ``call`` returns in a forked child process within 20 s."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        status = 1
        try:
            call()
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1] == 0


@contextlib.contextmanager
def held_by_another_thread(lock: contextlib.AbstractContextManager[object]) -> Iterator[None]:
    held, released = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            released.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    try:
        yield
    finally:
        released.set()
        thread.join(60)


@pytest.mark.parametrize("kind", ["received", "disk", "token", "future"])
def test_forked_child_does_not_wait_for_a_lock_that_another_thread_held(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    security = ClientSecurity(
        "SASL_PLAINTEXT",
        mechanism="OAUTHBEARER",
        username="id",
        secret=Secret("of id"),
        token_url="http://127.0.0.1:1",
    )
    monkeypatch.setattr(access_tokens, "_fetch", lambda _: AccessToken("token", 1 << 62))
    fresh_token(security)
    producer = Producer("127.0.0.1:1")
    sent = producer.send("t", b"x")
    locks: dict[str, contextlib.AbstractContextManager[object]] = {
        "received": received_buffers._lock,
        "disk": disk_buffers._lock,
        "token": access_tokens._cached[security].lock,
        "future": producer._waking,
    }
    calls: dict[str, Callable[[], object]] = {
        "received": lambda: received_buffers.take(10),
        "disk": lambda: disk_buffers.take(0, 10),
        "token": lambda: token_of(security),
        "future": lambda: sent.add_done_callback(lambda _: None),
    }
    with held_by_another_thread(locks[kind]):
        assert ends_in_child(calls[kind])
    producer.end()
