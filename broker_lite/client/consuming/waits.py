"""The steps that a task of ``ReaderCore`` yields where it must wait.

A task is a generator. Its driver, the code that runs the steps, is the blocking consumer on the
calling thread, or the asyncio consumer on its loop. For ``RunOperation``, the driver sends the
operation's result into the task, or throws its error; for ``Wait`` and ``Await`` it sends None."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Any, NamedTuple, TypeVar

from broker_lite.client.transport.steps import Operation, Shell, spawn

T = TypeVar("T")

OnDone = Callable[[Any], None]
FOREVER_MS = float("inf")


class RunOperation(NamedTuple):
    """A step that a reader's task (generator) yields to run an operation: a series of requests."""

    operation: Operation[Any]

    def start(self, shell: Shell, on_done: OnDone) -> None:
        """Run the operation in the background. ``on_done`` receives its result or error."""
        shell.call_soon(partial(spawn, shell, self.operation, on_done))


class Wait(NamedTuple):
    """A step that a reader's task (generator) yields: wait until ``is_over()`` is true or
    ``deadline_ms`` passes.

    ``is_over`` is called at the beginning and after each ``ReaderCore.notify``."""

    is_over: Callable[[], object]
    deadline_ms: float = FOREVER_MS


class Await(NamedTuple):
    """A step that a reader's task (generator) yields: await ``value``, the result of a user's
    callback, if it is awaitable.

    The blocking consumer ignores this step."""

    value: Any


class Request(NamedTuple):
    """A commit that the membership in a native group sends to ZooKeeper. Any other commit is a
    ``RunOperation``, which the driver of the reader's task runs.

    ``ReaderCore`` calls ``send`` with a callback for the result, and waits for the result with
    ``Wait``. Any thread may run the callback."""

    send: Callable[[OnDone], None]

    def start(self, _: Shell, on_done: OnDone) -> None:
        self.send(on_done)


Task = Generator[RunOperation | Wait | Await, Any, T]
