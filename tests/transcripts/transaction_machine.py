"""Drive the state machine of a transactional id by lines of text.

- ``now=`` sets the clock until another line sets it.
- ``transaction`` creates a new transactional id. With ``pid=5 epoch=3 state=Ongoing number=1
  parts=T-0``, the id is loaded from the log, with its first transaction. It may also have
  ``last=``, ``version=``, ``groups=`` and ``timeout=``.
- ``init who=a`` is InitProducerId; ``expected=5:3`` is for a producer after an error (KIP-360).
- ``add who=a as=5:3 parts=T-0,T-1 groups=g`` adds partitions and groups. ``v1`` selects transaction
  version 1, ``on=`` names the connection. ``broker`` and ``verify`` are for requests of brokers.
- ``commit who=a as=5:3`` and ``abort`` are EndTxn; they may have ``v1`` and ``on=``.
- ``persisted`` and ``refused`` are the outcome of the oldest record that has no outcome.
  ``persisted end`` and ``refused end`` are the outcome of the last record that ends a transaction.
- ``done T-0 g`` says that partition T-0 and group g have ended the transaction.
- ``pid 9`` delivers a new producer id; ``pid`` alone says that none could be assigned.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from broker_lite.errors import (
    CoordinationUnavailableError,
    CoordinatorNotAvailableError,
    NotCoordinatorError,
)
from broker_lite.model import NO_TRANSACTION, PartitionKey
from broker_lite.transactions import effects as fx
from broker_lite.transactions import events as ev
from broker_lite.transactions.records import TransactionRecord, TransactionState
from broker_lite.transactions.transaction import NEVER, Now, Transaction

Words = Mapping[str, str]
_STATES = {state.label: state for state in TransactionState}


class TransactionMachine:
    """The state machine of one transactional id. A transcript's line ``transaction`` creates it,
    and the lines after it are its events."""

    def __init__(self, words: Words) -> None:
        self.now_ms = 0
        record = None
        if "pid" in words:
            record = TransactionRecord(
                int(words["pid"]),
                int(words.get("epoch", "0")),
                int(words.get("timeout", "60000")),
                _STATES[words.get("state", "Empty")],
                last_epoch=int(words.get("last", "-1")),
                number=int(words.get("number", "0")),
                version=int(words.get("version", "2")),
                partitions=_parts(words),
                groups=_groups(words),
            )
        self.machine = Transaction("x", record)
        self._labels: dict[int, str] = {}
        self._written: deque[int] = deque()
        self._end = 0
        self._number = 0

    def do(self, verb: str, words: Words) -> list[str]:
        self.now_ms = int(words.get("now", self.now_ms))
        made = self._event(verb, words)
        events = made if isinstance(made, list) else [made]
        lines = []
        for event in events:
            effects = self.machine.step(Now(self.now_ms, self.now_ms), event)
            lines += [self._line(effect) for effect in effects]
        return [*lines, self._state()]

    def _event(self, verb: str, words: Words) -> ev.TransactionEvent | list[ev.TransactionEvent]:
        others = [word for word in words if "=" not in word and not words[word]]
        match verb:
            case "init":
                expected = _pair(words["expected"]) if "expected" in words else None
                return ev.Init(self._token(verb, words), _timeout(words), expected)
            case "add":
                return ev.Add(
                    self._token(verb, words),
                    *_pair(words["as"]),
                    _parts(words),
                    _groups(words),
                    version=1 if "v1" in words else 2,
                    verify_only="verify" in words,
                    connection=None if {"broker", "verify"} & set(words) else _on(words),
                )
            case "commit" | "abort":
                return ev.End(
                    self._token(verb, words),
                    *_pair(words["as"]),
                    verb == "commit",
                    version=1 if "v1" in words else 2,
                    connection=_on(words),
                )
            case "persisted":
                return ev.Persisted(self._end if others else self._written.popleft())
            case "refused":
                error = CoordinatorNotAvailableError("the state log refused the record")
                return ev.RecordRefused(self._end if others else self._written.popleft(), error)
            case "done":
                number = int(words.get("number", self._number))
                return [
                    ev.ParticipantDone(number, _part(word) if "-" in word else word)
                    for word in others
                ]
            case "pid":
                if others:
                    return ev.ProducerIdReady(int(others[0]))
                return ev.ProducerIdFailed(CoordinationUnavailableError("no ZooKeeper"))
            case "expire":
                return ev.Expire(int(words["before"]))
            case "abandon":
                return ev.Abandon(next(t for t, who in self._labels.items() if who == others[0]))
            case "loaded":
                return ev.Resumed()
            case "tick":
                return ev.TransactionTick()
        assert verb == "deposed", verb
        return ev.Deposed(NotCoordinatorError("another broker coordinates the id"))

    def _token(self, verb: str, words: Words) -> int:
        token = len(self._labels) + 1
        self._labels[token] = f"{verb}-{words.get('who', '')}".strip("-")
        return token

    def _line(self, effect: fx.TransactionEffect) -> str:
        match effect:
            case fx.Persist():
                # Requests do not wait for the record that completes a transaction.
                if effect.record is None or effect.record.state not in (
                    TransactionState.COMPLETE_COMMIT,
                    TransactionState.COMPLETE_ABORT,
                ):
                    self._written.append(effect.number)
                else:
                    self._end = effect.number
                return f"write {_show(effect.record)}"
            case fx.SendMarkers():
                self._number = effect.transaction
                kind = "commit" if effect.is_commit else "abort"
                rows = [*map(str, sorted(effect.partitions)), *sorted(effect.groups)]
                return (
                    f"send {kind} {effect.producer_id}:{effect.epoch} v{effect.version} "
                    f"of transaction {effect.transaction} to {', '.join(rows)}"
                )
            case fx.FetchProducerId():
                return "fetch a producer id"
        result = effect.result
        who = self._labels[effect.token]
        if result.error is not None:
            missing = ", ".join(map(str, sorted(result.missing)))
            names = f" {missing}" if missing else ""
            return f"answer {who}: {result.error.name}{names}"
        if result.transaction != NO_TRANSACTION:
            return f"answer {who}: added to transaction {result.transaction}"
        return f"answer {who}: {result.producer_id}:{result.epoch}"

    def _state(self) -> str:
        record = self.machine.record
        deadline = self.machine.deadline_ms
        due = "" if deadline == NEVER else f"; due {deadline}"
        quiet = "; quiet" if self.machine.is_quiet else ""
        pair = "" if record is None else f" {record.producer_id}:{record.epoch}"
        return f"= {self.machine.state.label}{pair}{due}{quiet}"


def _show(record: TransactionRecord | None) -> str:
    if record is None:
        return "deletion"
    out = f"{record.state.label} {record.producer_id}:{record.epoch}"
    if record.last_epoch >= 0:
        out += f" after {max(record.previous_id, -1)}:{record.last_epoch}".replace("-1:", "")
    if record.next_id >= 0:
        out += f" next {record.next_id}"
    if record.number:
        out += f" transaction {record.number}"
    rows = [*map(str, sorted(record.partitions)), *sorted(record.groups)]
    return f"{out} [{', '.join(rows)}]" if rows else out


def _pair(text: str) -> tuple[int, int]:
    producer_id, _, epoch = text.partition(":")
    return int(producer_id), int(epoch)


def _part(text: str) -> PartitionKey:
    topic, _, number = text.rpartition("-")
    return PartitionKey(topic, int(number))


def _parts(words: Words) -> frozenset[PartitionKey]:
    return frozenset(_part(word) for word in words.get("parts", "").split(",") if word)


def _groups(words: Words) -> frozenset[str]:
    return frozenset(word for word in words.get("groups", "").split(",") if word)


def _timeout(words: Words) -> int:
    return int(words.get("timeout", "60000"))


def _on(words: Words) -> int:
    return int(words.get("on", "1"))
