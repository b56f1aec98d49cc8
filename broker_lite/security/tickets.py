"""``TicketTable``: the tickets for which a broker hands out segment files as open descriptors.

A ticket is a random secret that a client receives in a fetch response. At the broker's Unix socket,
the client exchanges it for the ticket's *grant*, an open segment file. A ticket is valid once, for
``LIFETIME_MS``, and only while its principal may read the topic. The number of tickets is limited,
for each principal and in all. A new ticket beyond a limit replaces the oldest. The principal's
limit is lower, so clients that never use their tickets lose mostly their own tickets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

LIFETIME_MS = 10_000
"""Time in ms for which a ticket is valid. Clients exchange a ticket for a segment file as soon as
they receive it."""
TICKETS_MAX = 4096
"""Maximum number of valid tickets of a broker. Each keeps a segment file open for its client."""
TICKETS_OF_PRINCIPAL_MAX = 1024
"""Maximum number of valid tickets of one principal. A consumer has at most 64 at a time."""

G = TypeVar("G")


class _Ticket(NamedTuple, Generic[G]):
    principal: str
    ends_ms: int
    grant: G


class TicketTable(Generic[G]):
    """The valid tickets for segment files, from the oldest to the newest. ``G`` is the type of a
    grant, the object for which a ticket is exchanged."""

    def __init__(
        self,
        *,
        tickets_max: int = TICKETS_MAX,
        of_principal_max: int = TICKETS_OF_PRINCIPAL_MAX,
        lifetime_ms: int = LIFETIME_MS,
    ) -> None:
        self._tickets_max = tickets_max
        self._of_principal_max = of_principal_max
        self._lifetime_ms = lifetime_ms
        self._tickets: dict[bytes, _Ticket[G]] = {}
        self._of_principal: dict[str, dict[bytes, None]] = {}

    def __len__(self) -> int:
        return len(self._tickets)

    def issue(self, now_ms: int, secret: bytes, principal: str, grant: G) -> None:
        """Add a ticket of a principal, which can be exchanged for ``grant``. ``secret`` has 16
        random bytes."""
        self.expire(now_ms)
        own = self._of_principal.get(principal, {})
        if len(own) >= self._of_principal_max:
            self._remove(next(iter(own)))
        if len(self._tickets) >= self._tickets_max:
            self._remove(next(iter(self._tickets)))
        self._tickets[secret] = _Ticket(principal, now_ms + self._lifetime_ms, grant)
        self._of_principal.setdefault(principal, {})[secret] = None

    def redeem(self, now_ms: int, secret: bytes, may_read: Callable[[str, G], bool]) -> G | None:
        """Remove a ticket and return its grant. Return None for an unknown, used or expired ticket,
        and if ``may_read`` is false for its principal and grant.

        The lookup needs no comparison in constant time: it compares hashes first, so its time
        reveals no prefix of a valid secret."""
        self.expire(now_ms)
        ticket = self._remove(secret)
        if ticket is None or not may_read(ticket.principal, ticket.grant):
            return None
        return ticket.grant

    def expire(self, now_ms: int) -> None:
        """Remove the expired tickets."""
        while self._tickets:
            secret, ticket = next(iter(self._tickets.items()))
            if now_ms < ticket.ends_ms:
                return
            self._remove(secret)

    def clear(self) -> None:
        """Remove all tickets."""
        self._tickets.clear()
        self._of_principal.clear()

    def _remove(self, secret: bytes) -> _Ticket[G] | None:
        ticket = self._tickets.pop(secret, None)
        if ticket is not None:
            own = self._of_principal[ticket.principal]
            del own[secret]
            if not own:
                del self._of_principal[ticket.principal]
        return ticket
