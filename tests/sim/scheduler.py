"""An asyncio event loop in virtual time: its clock jumps to the next timer.

There are no sockets, threads or wall clocks, so the same coroutines with the same seed always run
in the same order. If a coroutine waits and no timer is left, the loop raises Deadlock.

A context variable names the *owner* (a simulated process) of each callback; tasks and timers
inherit the variable. Between two callbacks, a process can therefore be stopped and resumed later
(SIGSTOP), or ended without running any more of its code (SIGKILL).
"""

from __future__ import annotations

import asyncio
import inspect
import random
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from heapq import heappop, heappush
from typing import Any

WALL_BEGAN_MS = 1_735_689_600_000
"""Wall-clock time in milliseconds when a loop starts (2025)."""
ENDING_STEPS_MAX = 100_000
"""Callbacks that cancelled tasks may still run at the end of a run."""


class Deadlock(Exception):
    """Raised when coroutines wait and no timer is left that could wake them."""


class Owner:
    """A simulated process; its callbacks can be paused or dropped together."""

    __slots__ = ("context", "dead", "held", "of", "paused")

    def __init__(self, of: Any = None) -> None:
        self.of = of
        self.paused = self.dead = False
        self.held: list[Handle] = []
        self.context = copy_context()
        self.context.run(OWNER.set, self)

    def pause(self) -> None:
        """Hold back all callbacks of this simulated process until ``resume`` is called."""
        self.paused = True

    def resume(self, loop: SimLoop) -> None:
        self.paused = False
        held, self.held = self.held, []
        loop.ready.extend(held)

    def die(self) -> None:
        """Stop running the owner's callbacks, for good."""
        self.dead = True
        self.paused = False


OWNER: ContextVar[Owner | None] = ContextVar("owner", default=None)
OUTSIDE = Context()
"""The context of callbacks that belong to no process: network, disks, ZooKeeper."""


class Handle:
    """A callback that the loop runs as soon as possible, or at the time ``_when``."""

    __slots__ = ("_when", "args", "callback", "context")

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: Context, when: float
    ) -> None:
        self.callback: Callable[..., object] | None = callback
        self.args = args
        self.context = context
        self._when = when

    def cancel(self) -> None:
        self.callback = None
        self.args = ()

    def cancelled(self) -> bool:
        return self.callback is None

    def when(self) -> float:
        return self._when


class SimLoop(asyncio.AbstractEventLoop):
    """The event loop. ``now`` is the virtual time in seconds; ``steps`` counts the callbacks that
    have run."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0
        self.ready: deque[Handle] = deque()
        self._timers: list[tuple[float, int, Handle]] = []
        self._tasks: dict[asyncio.Task[Any], None] = {}
        """References that keep the coroutines of dead owners from being closed during a run."""
        self._number = 0
        self._closed = self._running = self._ending = False
        self._handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], Any] | None = None

    # The methods below are the interface that asyncio and the code under test need.

    def time(self) -> float:
        return self.now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        handle = Handle(callback, args, copy_context() if context is None else context, self.now)
        self.ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> Handle:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> Handle:
        handle = Handle(callback, args, copy_context() if context is None else context, when)
        self._number = number = self._number + 1
        heappush(self._timers, (when, number, handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self,
        coroutine: Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coroutine, loop=self, name=name or "sim", context=context)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop, context=OUTSIDE)
        return task

    def set_exception_handler(
        self, handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], Any] | None
    ) -> None:
        self._handler = handler

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._handler is not None and not self._ending:
            self._handler(self, context)

    # The methods below run callbacks.

    def run_until_complete(self, future: Any) -> Any:
        main: asyncio.Future[Any] = asyncio.ensure_future(future, loop=self)
        with self._as_running():
            self._run(main)
        return main.result()

    @contextmanager
    def _as_running(self) -> Iterator[None]:
        events._set_running_loop(self)
        self._running = True
        try:
            yield
        finally:
            self._running = False
            events._set_running_loop(None)

    def _run(self, main: asyncio.Future[Any]) -> None:
        ready, timers = self.ready, self._timers
        while not main.done():
            if ready:
                handle = ready.popleft()
            elif timers:
                when, _, handle = heappop(timers)
                if handle.callback is None:
                    continue
                if when > self.now:
                    self.now = when
            else:
                raise Deadlock(f"coroutines wait, but no timer is left at {self.now:.6f}")
            if handle.callback is not None:
                self._step(handle)

    def _step(self, handle: Handle) -> None:
        callback = handle.callback
        if callback is None:
            return
        context = handle.context
        owner = context.get(OWNER)
        if owner is not None and (owner.dead or owner.paused) and not self._ending:
            if owner.paused:
                owner.held.append(handle)
            return
        self.steps += 1
        try:
            context.run(callback, *handle.args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self.call_exception_handler({"message": "in a callback", "exception": error})

    def finish(self) -> None:
        """Cancel all remaining tasks, also those of dead processes, and run them to their end."""
        self._ending = True
        with self._as_running():
            for task in list(self._tasks):
                task.cancel()
            for _ in range(ENDING_STEPS_MAX):
                if not self.ready:
                    break
                self._step(self.ready.popleft())
        for task in self._tasks:
            # The task never ran, because its owner died or was stopped.
            coroutine = task.get_coro()
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:  # type: ignore[arg-type]
                coroutine.close()
        self._tasks.clear()
        self.ready.clear()
        self._timers.clear()
        self._closed = True

    def close(self) -> None:
        self._closed = True


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to its end in virtual time, then cancel the tasks that are left."""
    loop = SimLoop()  # type: ignore[abstract]
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.finish()


def stream(seed: int, purpose: str) -> random.Random:
    """Return a random generator for one purpose; its draws do not change other generators."""
    return random.Random(f"{seed}/{purpose}")
