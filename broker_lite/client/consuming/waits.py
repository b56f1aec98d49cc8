"""The steps that a reader's task yields when it must wait.

A task is a generator, like an operation of ``transport.steps``. A driver runs its steps: the
blocking consumer on the calling thread, the asyncio consumer on its loop. A ``RunOperation`` step
returns the operation's result or raises its error. ``Wait`` and ``Await`` steps return None.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Any, NamedTuple, TypeVar

from broker_lite.client.transport.steps import Operation, Shell, spawn

T = TypeVar("T")

OnDone = Callable[[Any], None]
FOREVER_MS = float("inf")


class RunOperation(NamedTuple):
    """A step that runs an operation against the brokers."""

    operation: Operation[Any]

    def start(self, shell: Shell, on_done: OnDone) -> None:
        """Run the operation in the background. ``on_done`` receives its result or error."""
        shell.call_soon(partial(spawn, shell, self.operation, on_done))


class Wait(NamedTuple):
    """A step that waits until ``is_over`` returns true or ``deadline_ms`` passes.
    ``ReaderCore.notify`` makes the driver call ``is_over`` again."""

    is_over: Callable[[], object]
    deadline_ms: float = FOREVER_MS


class Await(NamedTuple):
    """A step that awaits ``value`` if it is awaitable. The blocking consumer ignores this step."""

    value: Any


class Request(NamedTuple):
    """A request that passes its answer to a callback, from any thread. No driver runs it.
    ``ReaderCore`` waits for the answer with ``Wait``."""

    send: Callable[[OnDone], None]

    def start(self, _: Shell, on_done: OnDone) -> None:
        self.send(on_done)


Task = Generator[RunOperation | Wait | Await, Any, T]
