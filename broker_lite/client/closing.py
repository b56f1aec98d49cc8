"""The ``with`` statement of producers, consumers and buses: its end closes the object."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

from broker_lite.errors import LogbusError


class ClosedByWith(ABC):
    """Base of the blocking classes: ``with`` closes the object. If the body raises an error, a
    later LogbusError of ``close`` is dropped."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self._exit(is_done=kind is None)
        except LogbusError:
            if kind is None:
                raise

    @abstractmethod
    def close(self) -> None: ...

    def _exit(self, *, is_done: bool) -> None:
        """Close the object. ``is_done``: the body of ``with`` raised no error."""
        self.close()


class ClosedByAsyncWith(ABC):
    """Base of the asyncio classes: ``ClosedByWith`` for ``async with``."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            await self._exit(is_done=kind is None)
        except LogbusError:
            if kind is None:
                raise

    @abstractmethod
    async def close(self) -> None: ...

    async def _exit(self, *, is_done: bool) -> None:
        await self.close()
