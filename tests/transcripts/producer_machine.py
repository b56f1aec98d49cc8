"""Drive the state machine of a transactional producer by lines of text.

- ``producer`` creates a producer with the transactional id ``x``.
- ``begin``, ``commit``, ``abort`` and ``offsets`` are calls of the user.
- ``sent`` sends a batch; after it the coordinator may know the transaction.
- ``initialized``, ``ended`` and ``offsets_sent`` answer requests.
- ``init_failed``, ``end_failed`` and ``offsets_sent`` with ``error=90`` answer them with this error
  code of Kafka.
- ``send_failed`` says that a batch failed; ``delivered`` says that all batches are acknowledged.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker_lite.client.producing.batches import ProducerIdentity
from broker_lite.client.transactions import events as ev
from broker_lite.client.transactions.machine import Phase, TransactionMachine
from broker_lite.errors import LogbusError, error_for

Words = Mapping[str, str]


class ProducerMachine:
    """The state machine of a transactional producer. A transcript's line ``producer`` creates it,
    and the lines after it are its events."""

    def __init__(self, words: Words) -> None:
        self.machine = TransactionMachine("x", int(words.get("timeout", "60000")))
        self.version = int(words.get("version", "2"))
        self.has_sent = False

    def do(self, verb: str, words: Words) -> list[str]:
        if verb == "sent":
            self.has_sent = True
            return ["ok"]
        event = self._event(verb, words)
        lines = []
        for effect in self.machine.step(event, has_sent=self.has_sent):
            if isinstance(effect, ev.OpenSends):
                self.has_sent = False
            lines.append(_line(effect))
        return [*lines, self._state()]

    def _event(self, verb: str, words: Words) -> ev.Event:
        error = error_for(int(words["error"])) if "error" in words else None
        match verb:
            case "begin":
                return ev.BeginCall()
            case "commit":
                return ev.CommitCall()
            case "abort":
                return ev.AbortCall()
            case "offsets":
                return ev.OffsetsCall("g")
            case "initialized":
                return ev.Initialized(_identity(words), self.version)
            case "ended":
                return ev.Ended(_identity(words) if words else None)
            case "delivered":
                return ev.Delivered()
            case "offsets_sent":
                return ev.OffsetsSent(error)
        assert error is not None, verb
        match verb:
            case "init_failed":
                return ev.InitFailed(error)
            case "end_failed":
                return ev.EndFailed(error)
        assert verb == "send_failed", verb
        return ev.SendFailed(error)

    def _state(self) -> str:
        machine = self.machine
        who = "no producer id" if machine.identity is None else _name(machine.identity)
        return f"= {machine.phase.name.lower()}: {Phase(machine.phase).value}; {who}"


def _identity(words: Words) -> ProducerIdentity:
    return ProducerIdentity(int(words.get("id", "7")), int(words["epoch"]))


def _name(identity: ProducerIdentity | None) -> str:
    return "anybody" if identity is None else f"{identity.producer_id} epoch {identity[1]}"


def _line(effect: ev.Effect) -> str:
    match effect:
        case ev.Initialize(expected):
            return f"InitProducerId as {_name(expected)}"
        case ev.OpenSends(identity, version):
            return f"open sends as {_name(identity)}, version {version}"
        case ev.ShutSends(error):
            return f"shut sends: {_error(error)}"
        case ev.AwaitDelivery():
            return "await acknowledgements"
        case ev.DiscardSends(error):
            return f"discard: {_error(error)}"
        case ev.CommitOffsets(identity, version):
            return f"TxnOffsetCommit as {_name(identity)}, version {version}"
        case ev.SendEnd(identity, version, committed):
            kind = "commit" if committed else "abort"
            return f"EndTxn {kind} as {_name(identity)}, version {version}"
        case ev.AnswerCall(error):
            return "answer: done" if error is None else f"answer: {_error(error)}"


def _error(error: LogbusError) -> str:
    return f"{error.name}, {error.message}"
