"""Drive the table of tickets (secrets to exchange for open segment files) by lines of text.

- ``tickets`` creates a table; ``max=``, ``each=`` (principal) and ``lifetime=`` set its limits.
- ``now=`` sets the clock until another line sets it.
- ``issue of=alice a b`` issues the tickets ``a`` and ``b`` of a principal. They stand for the files
  ``a.log`` and ``b.log``.
- ``redeem a`` exchanges a ticket. With ``denied=alice``, this principal may not read any more.
- ``expire`` removes expired tickets, ``clear`` all."""

from __future__ import annotations

from collections.abc import Mapping

from broker_lite.security.tickets import TicketTable

Words = Mapping[str, str]


class TicketMachine:
    """A table of tickets, each of which a reader exchanges once for an open file. The line
    ``tickets`` creates the table, and the lines after it are its operations."""

    def __init__(self, words: Words) -> None:
        self.now_ms = 0
        self.table: TicketTable[str] = TicketTable(
            tickets_max=int(words.get("max", "100")),
            of_principal_max=int(words.get("each", "100")),
            lifetime_ms=int(words.get("lifetime", "10000")),
        )

    def do(self, verb: str, words: Words) -> list[str]:
        self.now_ms = int(words.get("now", self.now_ms))
        names = [word for word, value in words.items() if not value]
        lines = []
        match verb:
            case "issue":
                for name in names:
                    self.table.issue(self.now_ms, name.encode(), words["of"], f"{name}.log")
            case "redeem":
                for name in names:
                    lines.append(f"{name}: {self._redeem(name, words.get('denied', ''))}")
            case "expire":
                self.table.expire(self.now_ms)
            case "clear":
                self.table.clear()
        return [*lines, f"= {len(self.table)} valid"]

    def _redeem(self, name: str, denied: str) -> str:
        def may_read(principal: str, _: str) -> bool:
            return principal != denied

        return self.table.redeem(self.now_ms, name.encode(), may_read) or "refused"
