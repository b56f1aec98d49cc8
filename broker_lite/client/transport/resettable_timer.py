"""``ResettableTimer``: a timer of which at most one is pending."""

from __future__ import annotations

from collections.abc import Callable

from broker_lite.client.transport.steps import Timer


class ResettableTimer:
    """A timer that calls ``ring`` once for each ``set``, unless it is set again or cancelled first.

    ``later`` starts a timer, as ``Shell.later`` does."""

    __slots__ = ("_later", "_pending", "_ring")

    def __init__(
        self, later: Callable[[float, Callable[[], None]], Timer], ring: Callable[[], None]
    ) -> None:
        self._later = later
        self._ring = ring
        self._pending: Timer | None = None

    @property
    def is_set(self) -> bool:
        """Whether ``ring`` is still to be called."""
        return self._pending is not None

    def set(self, delay_ms: float) -> None:
        """Call ``ring`` after ``delay_ms`` milliseconds, and not at the time set before."""
        self.cancel()
        self._pending = self._later(max(0.0, delay_ms), self._expire)

    def set_for(self, wake_ms: float | None, now_ms: float) -> None:
        """Call ``ring`` when a state machine must run next (``wake_ms``); None cancels the timer.

        The timer is set a little later than ``wake_ms``. State machines count whole milliseconds:
        before that millisecond, the state machine would find nothing to do."""
        if wake_ms is None:
            self.cancel()
        else:
            self.set(max(0.0, wake_ms - now_ms) + 0.01)

    def cancel(self) -> None:
        """Do not call ``ring``. The timer can be set again."""
        if self._pending is not None:
            self._pending.cancel()
            self._pending = None

    def _expire(self) -> None:
        self._pending = None
        self._ring()
