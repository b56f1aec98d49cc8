"""Drive the state machine of Spark sinks (in one ``__transaction_state`` partition) by text lines.

- ``now=`` sets the clock until another line sets it.
- ``sinks`` creates a partition without records.
- ``join who=a run=r1 batch=3 task=0 attempt=0`` is a request of a task attempt to join a batch. It
  may have ``sink=`` (default ``s``), ``parts=T-0,T-1`` and ``timeout=`` in ms.
- ``keep who=a run=r1 batch=3`` is an attempt's heartbeat; ``add who=p as=7:0 parts=T-1`` adds
  partitions.
- ``commit who=d run=r1 batch=3 winners=7:0,8:0 rows=10`` and ``abort who=d run=r1 batch=3`` are
  requests of the driver; ``winners`` are the attempts to commit (producer id and epoch).
- ``persisted`` and ``refused`` are the outcome of the oldest record that has no outcome.
- ``marked 7:1`` says that the markers of an attempt are written.
- ``id 7`` delivers a new producer id; ``id`` alone says that none could be assigned.
- ``reload`` makes another coordinator load the committed records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from broker_lite.errors import (
    CoordinationUnavailableError,
    CoordinatorNotAvailableError,
    NotCoordinatorError,
)
from broker_lite.model import PartitionKey
from broker_lite.transactions import sink_events as ev
from broker_lite.transactions.events import (
    Deposed,
    Persisted,
    ProducerIdFailed,
    ProducerIdReady,
    RecordRefused,
    TransactionTick,
)
from broker_lite.transactions.sink_records import (
    ProducerPair,
    SinkHead,
    SinkSlot,
    SinkState,
    decode_head,
    decode_slot,
    encode_head,
    encode_slot,
)
from broker_lite.transactions.sinks import SinkPartition
from broker_lite.transactions.transaction import NEVER, Now

Words = Mapping[str, str]
Record = ev.PersistHead | ev.PersistSlot


class SinkMachine:
    """The state machine of the exactly-once sinks in one partition of the transaction log. The line
    ``sinks`` creates it, and the lines after it are its events."""

    def __init__(self, words: Words) -> None:
        self.now_ms = 0
        self.machine = SinkPartition({}, {})
        self._labels: dict[int, str] = {}
        self._written: deque[Record] = deque()
        self._heads: dict[str, bytes] = {}
        self._slots: dict[int, bytes] = {}

    def do(self, verb: str, words: Words) -> list[str]:
        self.now_ms = int(words.get("now", self.now_ms))
        if verb == "reload":
            heads = {name: decode_head(value) for name, value in self._heads.items()}
            slots = {number: decode_slot(value) for number, value in self._slots.items()}
            self.machine = SinkPartition(heads, slots)
            self._written.clear()
        effects = self.machine.step(Now(self.now_ms, self.now_ms), self._event(verb, words))
        return [*map(self._line, effects), *self._state()]

    def _event(self, verb: str, words: Words) -> ev.SinkEvent:
        others = [word for word in words if "=" not in word and not words[word]]
        sink, run = words.get("sink", "s"), words.get("run", "")
        batch = int(words.get("batch", "0"))
        match verb:
            case "join":
                task, attempt = int(words.get("task", "0")), int(words.get("attempt", "0"))
                timeout_ms = int(words.get("timeout", "60000"))
                token = self._token(verb, words)
                return ev.JoinBatch(
                    token, sink, run, batch, task, attempt, timeout_ms, _parts(words)
                )
            case "keep":
                return ev.KeepBatch(self._token(verb, words), sink, run, batch)
            case "commit" | "abort":
                return ev.EndBatch(
                    self._token(verb, words),
                    sink,
                    run,
                    batch,
                    verb == "commit",
                    frozenset(map(_pair, words.get("winners", "").split(",")))
                    if words.get("winners")
                    else frozenset(),
                    int(words.get("rows", "0")),
                )
            case "add":
                pair = _pair(words["as"])
                return ev.AddToSlot(
                    self._token(verb, words), sink, *pair, _parts(words), "verify" in words
                )
            case "persisted":
                record = self._written.popleft()
                self._commit(record)
                return Persisted(record.number)
            case "refused":
                error = CoordinatorNotAvailableError("the state log refused the record")
                return RecordRefused(self._written.popleft().number, error)
            case "marked":
                return ev.SlotMarked(*_pair(others[0]))
            case "id":
                if others:
                    return ProducerIdReady(int(others[0]))
                return ProducerIdFailed(CoordinationUnavailableError("no ZooKeeper"))
            case "abandon":
                token = next(t for t, who in self._labels.items() if who == others[0])
                return ev.AbandonSinkRequest(token)
            case "expire":
                return ev.ExpireSinks(int(words.get("day", "0")), int(words.get("before", "0")))
            case "reload":
                return ev.SinksLoaded()
            case "tick":
                return TransactionTick()
        assert verb == "deposed", verb
        return Deposed(NotCoordinatorError("another broker coordinates the sinks"))

    def _token(self, verb: str, words: Words) -> int:
        token = len(self._labels) + 1
        self._labels[token] = f"{verb}-{words.get('who', '')}".strip("-")
        return token

    def _commit(self, record: Record) -> None:
        if isinstance(record, ev.PersistHead):
            self._heads.pop(record.sink, None)
            if record.head is not None:
                self._heads[record.sink] = encode_head(record.head)
        else:
            self._slots.pop(record.producer_id, None)
            if record.slot is not None:
                self._slots[record.producer_id] = encode_slot(record.slot)

    def _line(self, effect: ev.SinkEffect) -> str:
        match effect:
            case ev.PersistHead():
                self._written.append(effect)
                return f"write {effect.sink}: {_show_head(effect.head)}"
            case ev.PersistSlot():
                self._written.append(effect)
                return f"write slot {effect.producer_id}: {_show_slot(effect.slot)}"
            case ev.SendSinkMarkers():
                rows = [
                    f"{'commit' if row.is_commit else 'abort'} {row.producer_id}:{row.epoch} to "
                    + _show_parts(row.partitions)
                    for row in effect.rows
                ]
                return f"send for {effect.sink}: {'; '.join(rows)}"
            case ev.FetchSlotId():
                return "fetch a producer id"
        error, producer_id, epoch = effect.result
        who = self._labels[effect.token]
        if error is not None:
            return f"answer {who}: {error.name}"
        if who.startswith("join"):
            return f"answer {who}: " + (
                f"{producer_id}:{epoch}" if producer_id >= 0 else "committed"
            )
        return f"answer {who}: ok"

    def _state(self) -> list[str]:
        lines = [f"= {name}: {_show_head(head)}" for name, head in self.machine.heads().items()]
        deadline = self.machine.deadline_ms
        return lines if deadline == NEVER else [*lines, f"= due {deadline}"]


def _show_head(head: SinkHead | None) -> str:
    if head is None:
        return "deletion"
    out = f"run {head.run}"
    if head.former_runs:
        out += f" after {','.join(head.former_runs)}"
    if head.batch >= 0:
        out += f", batch {head.batch} with {head.rows} rows"
    if head.state is SinkState.OPEN:
        return out
    winners = ",".join(f"{pair.producer_id}:{pair.epoch}" for pair in sorted(head.winners))
    ends = f" up to batch {head.ends_batch}" if head.ends_batch >= 0 else " of former runs"
    return f"{out}, {head.state.name.lower()}{ends}{' winners ' if winners else ''}{winners}"


def _show_slot(slot: SinkSlot | None) -> str:
    if slot is None:
        return "deletion"
    if slot.is_free:
        return f"free, epoch {slot.epoch}"
    parts = _show_parts(slot.partitions)
    return (
        f"epoch {slot.epoch}, {slot.sink} run {slot.run} batch {slot.batch} task {slot.task} "
        f"attempt {slot.attempt} [{parts}]"
    )


def _pair(text: str) -> ProducerPair:
    producer_id, _, epoch = text.partition(":")
    return ProducerPair(int(producer_id), int(epoch))


def _parts(words: Words) -> frozenset[PartitionKey]:
    rows = [word.rpartition("-") for word in words.get("parts", "").split(",") if word]
    return frozenset(PartitionKey(TOPICS[topic], int(number)) for topic, _, number in rows)


def _show_parts(parts: frozenset[PartitionKey]) -> str:
    return ", ".join(f"{part.topic_id.rstrip('A')}-{part.partition}" for part in sorted(parts))


class _Topics(dict[str, str]):
    """Maps short topic names to topic ids of 22 characters, as the encoding of records requires."""

    def __missing__(self, name: str) -> str:
        return f"{name:A<22}"


TOPICS = _Topics()
