"""Let this broker stand for election as controller and write the controller's decisions.

``replication/controller.py`` decides; this module reads and writes ZooKeeper. A broker becomes
controller with one ZooKeeper transaction, which creates the ephemeral znode /controller and raises
/controller_epoch. Each later write checks the version of /controller_epoch, so a former controller
cannot write. Events are handled one at a time.

If the answer to a write is lost, the controller reads whether the write took effect. If ZooKeeper
refuses a write of the current controller, its metadata are stale: it reads them again. When its
ZooKeeper session ends, it discards its state."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence

from broker_lite.config import BrokerConfig
from broker_lite.errors import (
    BrokerNotAvailableError,
    CoordinationUnavailableError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    LogbusError,
    NotControllerError,
    WriteConflictError,
)
from broker_lite.metadata import loader, znodes
from broker_lite.metadata.notices import Notices, announce, merge
from broker_lite.metadata.store import (
    RETRY_S,
    Check,
    Create,
    Delete,
    MetadataStore,
    Set,
    Znode,
    write_surely,
)
from broker_lite.model import StateChange, TopicView
from broker_lite.replication.controller import Controller
from broker_lite.replication.controller_effects import (
    Answer,
    ControllerEffect,
    RemoveDisks,
    Warn,
    Write,
    WriteAssignment,
    WriteFeatures,
    WriteStates,
)
from broker_lite.replication.controller_events import (
    BrokersChanged,
    ControllerEvent,
    ControllerTick,
    Loaded,
    Request,
    StatesRead,
    SuspectsChanged,
    WriteRefused,
    Written,
)
from broker_lite.server.cluster.controller_writes import notice_content, operations_of
from broker_lite.server.log_events import log_event

_log = logging.getLogger(__name__)

REFUSALS_MAX = 20
"""How often the controller tries one event while ZooKeeper refuses its write, because partition
leaders have changed the same znodes. Then the controller reads all metadata again."""
DEPOSED_PAUSE_S = 0.5
"""Seconds for which a deposed controller does not stand for election again.

The brokers that deposed it cannot reach it, so one of them should be elected."""
GIVE_UP_AFTER_S = 1.0
"""Seconds from an unexpected error of the controller until it deletes its znode /controller.

Without the pause, brokers that all meet this error would become controller in turn, endlessly."""

LACK_OF_BROKERS = (
    BrokerNotAvailableError, InvalidReplicaAssignmentError, InvalidReplicationFactorError,
)  # fmt: skip
"""Errors of requests that need more live brokers than the controller knows.

A broker may have started since the controller last read the brokers. So the controller reads them
and tries such a request once more."""


class _Deposed(Exception):
    """This broker is no longer controller: another was elected, or its own ZooKeeper session
    ended."""


class ControllerShell:
    """Runs the controller on one broker: stands for election, reads and writes ZooKeeper.

    ``wait_connected`` returns when ZooKeeper is connected. ``snapshot`` returns the topics that the
    broker read last.
    """

    def __init__(
        self,
        store: MetadataStore,
        config: BrokerConfig,
        *,
        wait_connected: Callable[[], Awaitable[None]],
        snapshot: Callable[[], loader.TopicsSnapshot],
    ) -> None:
        self._store = store
        self._config = config
        self._broker_id = config.broker_id
        self._wait_connected = wait_connected
        self._topics_snapshot = snapshot
        self._machine = Controller(config.leader_rebalance_ms)
        self._fence: Check | None = None
        self._epoch = 0
        self._session_id = 0
        self._requests: deque[Request] = deque()
        self._states: list[StateChange] = []
        self._suspects: Mapping[int, int] = {}
        self._brokers_changed = self._suspects_changed = False
        self._awake = asyncio.Event()
        self._answers: dict[int, asyncio.Future[Answer]] = {}
        self._next_token = 0
        self._task: asyncio.Task[None] | None = None
        self._features_version = 0
        self._notices = Notices(-1, ())

    @property
    def is_active(self) -> bool:
        return self._fence is not None

    @property
    def written_sequence(self) -> int:
        """Sequence number of the newest notice of metadata changes that this controller wrote or
        read."""
        return self._notices.sequence

    # Methods by which this broker becomes controller, is deposed and resigns.

    async def stand(self, broker_epoch: int, own_epochs: frozenset[int]) -> float:
        """Become controller if the cluster has none, and watch the znode /controller.

        ``own_epochs`` are the broker epochs of this process. A /controller that an earlier process
        of this broker left is deleted first. Return the seconds until the broker may stand for
        election again: above 0 only after other brokers deposed it."""
        while True:
            present = await self._store.get(znodes.CONTROLLER, watch=True)
            epoch = await self._store.get(znodes.CONTROLLER_EPOCH)
            assert epoch is not None
            if present is None and self._fence is not None:
                self.resign()
                return DEPOSED_PAUSE_S
            if present is None:
                if await self._elect_self(broker_epoch, epoch):
                    return 0
                continue
            if present.session_id == self._store.session_id:
                if self._fence is not None:
                    return 0
                # This broker created /controller with a write whose answer was lost. If the same
                # znode still exists after the controller epoch was read, this epoch is the broker's
                # own.
                if await self._store.get(znodes.CONTROLLER) == present:
                    number = znodes.decode_controller_epoch(znodes.CONTROLLER_EPOCH, epoch.data)
                    self._begin(present.session_id, number, epoch.version)
                    return 0
                continue
            if self._fence is not None:
                self.resign()
            broker_id, held_by = znodes.decode_controller(znodes.CONTROLLER, present.data)
            if broker_id != self._broker_id or held_by in own_epochs:
                return 0
            await self._remove(present, epoch)

    async def depose(self, suspects: Mapping[int, int]) -> None:
        """Delete the znode /controller if a suspected broker process holds it.

        ``suspects`` maps broker ids to the broker epochs of the processes that seem dead."""
        present, epoch = await asyncio.gather(
            self._store.get(znodes.CONTROLLER), self._store.get(znodes.CONTROLLER_EPOCH)
        )
        if present is None or epoch is None:
            return
        broker_id, held_by = znodes.decode_controller(znodes.CONTROLLER, present.data)
        if suspects.get(broker_id) == held_by:
            _log.warning(
                "broker %d, the controller, refuses connections; another broker is to be elected",
                broker_id,
                extra=log_event("controller_deposed"),
            )
            await self._remove(present, epoch)

    async def _remove(self, present: Znode, epoch: Znode) -> None:
        """Delete the znode /controller if it is still ``present`` and no broker was elected since
        ``epoch`` was read.

        An election changes /controller_epoch, so the write checks that this znode still has the
        version of ``epoch``."""
        if await self._store.get(znodes.CONTROLLER) == present:
            check = Check(znodes.CONTROLLER_EPOCH, epoch.version)
            await self._store.write([check, Delete(znodes.CONTROLLER, present.version)])

    async def _elect_self(self, broker_epoch: int, epoch: Znode) -> bool:
        number = znodes.decode_controller_epoch(znodes.CONTROLLER_EPOCH, epoch.data) + 1
        session_id = self._store.session_id
        data = znodes.encode_controller(self._broker_id, broker_epoch)
        raised = znodes.encode_controller_epoch(number)
        refused = await self._store.write(
            [
                Create(znodes.CONTROLLER, data, ephemeral=True),
                Set(znodes.CONTROLLER_EPOCH, raised, epoch.version),
            ]
        )
        if refused is not None:
            return False
        self._begin(session_id, number, epoch.version + 1)
        return True

    def resign(self, error: LogbusError | None = None) -> None:
        """Stop being controller. Pending requests fail with ``error``, by default
        NotControllerError."""
        if self._fence is not None:
            _log.info(
                "broker %d is no longer controller",
                self._broker_id,
                extra=log_event("controller_resigned"),
            )
        self._fence = None
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._requests.clear()
        self._states.clear()
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            if not answer.done():
                answer.set_exception(error or NotControllerError())
                answer.exception()

    # Methods by which ``Registry`` reports changes, and callers make requests.

    def brokers_changed(self, suspects: Mapping[int, int]) -> None:
        """Tell the controller that brokers joined or left; it then reads the live brokers.

        ``suspects`` maps broker ids to the broker epochs of the processes that seem dead."""
        self._suspects = dict(suspects)
        if self._fence is not None:
            self._brokers_changed = True
            self._awake.set()

    def suspects_changed(self, suspects: Mapping[int, int]) -> None:
        """Tell the controller which broker processes seem dead: their broker epochs, by broker
        id."""
        self._suspects = dict(suspects)
        if self._fence is not None:
            self._suspects_changed = True
            self._awake.set()

    def states_read(self, states: Sequence[StateChange]) -> None:
        """Pass partition states, read from ZooKeeper after a change notice, to the controller's
        state machine."""
        if self._fence is not None and states:
            self._states += states
            self._awake.set()

    async def request(self, request: Request) -> Answer:
        """Submit a request to the controller. Return its answer when ZooKeeper has stored the
        result.

        Raises NotControllerError, CoordinationUnavailableError, WriteConflictError or the request's
        own error. A request that fails for lack of brokers is tried once more with newly read
        brokers, because a new broker may be ready before the controller knows it."""
        try:
            return await self._submit(request)
        except LACK_OF_BROKERS:
            await self._store.sync(znodes.BROKER_IDS)
            self.read_brokers()
            return await self._submit(request)

    def read_brokers(self) -> None:
        """Make the controller read the live brokers before it handles the next request."""
        self._brokers_changed = True

    async def _submit(self, request: Request) -> Answer:
        if self._fence is None:
            raise NotControllerError()
        if not self._store.connected:
            raise CoordinationUnavailableError("ZooKeeper does not answer; try again later")
        token = self._next_token = self._next_token + 1
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._answers[token] = answer
        self._requests.append(request._replace(token=token))
        self._awake.set()
        return await asyncio.shield(answer)

    # Methods that run while this broker is controller.

    def _begin(self, session_id: int, epoch: int, version: int) -> None:
        _log.info(
            "broker %d is controller in epoch %d",
            self._broker_id,
            epoch,
            extra=log_event("controller_elected"),
        )
        self._fence = Check(znodes.CONTROLLER_EPOCH, version)
        self._epoch = epoch
        self._session_id = session_id
        self._machine = Controller(self._config.leader_rebalance_ms)
        self._requests.clear()
        self._states.clear()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            await self._settle(await self._load())
            while True:
                self._awake.clear()
                while (event := await self._next_event()) is not None:
                    await self._settle(event)
                await self._sleep()
        except _Deposed:
            self._task = None
            self.resign()
            # Delete /controller if it is still this broker's, so that an election can follow.
            await self._give_up()
        except Exception:
            # Resign. Otherwise the cluster would keep a controller that no longer does anything.
            _log.exception("the controller of broker %d failed; it resigns", self._broker_id)
            self._task = None
            self.resign()
            await asyncio.sleep(GIVE_UP_AFTER_S)
            await self._give_up()

    @staticmethod
    def _now_ms() -> int:
        """Return monotonic time in ms. With wall-clock time, a clock that is set back would delay
        the return of partitions to their preferred leaders."""
        return int(asyncio.get_running_loop().time() * 1000)

    async def _sleep(self) -> None:
        due_ms = self._machine.due_ms
        left_s = None if due_ms is None else max(0, due_ms - self._now_ms()) / 1000
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(left_s):
                await self._awake.wait()

    async def _next_event(self) -> ControllerEvent | None:
        """Return the most urgent event, or None.

        The order is: suspected brokers, brokers that joined or left, partition states, ticks,
        requests."""
        if self._suspects_changed:
            self._suspects_changed = False
            return SuspectsChanged(self._suspects)
        if self._brokers_changed:
            self._brokers_changed = False
            while True:
                try:
                    return BrokersChanged(await loader.load_brokers(self._store), self._suspects)
                except CoordinationUnavailableError:
                    await self._reconnected()
        if self._states:
            states, self._states = self._states, []
            return StatesRead(states)
        if self._machine.due_ms is not None and self._machine.due_ms <= self._now_ms():
            return ControllerTick()
        return self._requests.popleft() if self._requests else None

    async def _give_up(self) -> None:
        try:
            present = await self._store.get(znodes.CONTROLLER)
            if present is not None and present.session_id == self._store.session_id:
                await self._store.write([Delete(znodes.CONTROLLER, present.version)])
        except CoordinationUnavailableError:
            _log.info("cannot delete /controller; it disappears when the ZooKeeper session expires")

    async def _load(self, *, anew: bool = False) -> Loaded:
        """Read all metadata from ZooKeeper; with ``anew``, even the topics that this broker's
        snapshot has."""
        while True:
            try:
                await self._store.sync("/")
                # Read the change notices first. If the metadata change after this read, the version
                # of the notices changes too, and ZooKeeper refuses the controller's writes.
                self._notices = await loader.load_notices(self._store)
                features, brokers, disks, topics = await asyncio.gather(
                    self._store.get(znodes.FEATURES),
                    loader.load_brokers(self._store),
                    loader.load_disks(self._store),
                    self._load_topics(anew),
                )
            except CoordinationUnavailableError:
                await self._reconnected()
                continue
            assert features is not None
            self._features_version = features.version
            return Loaded(
                self._epoch,
                brokers,
                topics,
                znodes.decode_features(znodes.FEATURES, features.data),
                {disk.broker_id for disk in disks.values()},
                self._suspects,
            )

    async def _load_topics(self, anew: bool) -> dict[str, TopicView]:
        """Return all topics. With ``anew``, read each of them from ZooKeeper; otherwise read only
        those that changed since this broker's metadata snapshot."""
        snapshot = self._topics_snapshot()
        merged = None if anew else merge(self._notices, snapshot.sequence)
        if merged is None:
            return await loader.load_topics(self._store)
        return await loader.refresh_topics(self._store, snapshot.topics, merged.topics)

    async def _settle(self, event: ControllerEvent) -> None:
        """Let the state machine decide about an event and write its decisions.

        If ZooKeeper refuses a write, read the metadata again and let the state machine decide
        again."""
        refusals = 0
        while True:
            try:
                refused = await self._carry_out(self._machine.step(self._now_ms(), event))
            except InvalidRequestError as error:
                # The write is impossible, for example too large, for any controller. Refuse the
                # request; if this controller resigned instead, the next one would fail too.
                token = getattr(event, "token", None)
                if token is None:
                    raise
                self._answer(Answer(token, error=error))
                return
            if refused is None and refusals and isinstance(event, Request | ControllerTick):
                # The refused write may have belonged to an election, for example, not to the
                # request. Let the state machine look in every partition for a due election again.
                event, refusals = SuspectsChanged(self._suspects), 0
                continue
            if refused is None:
                return
            refusals += 1
            if isinstance(refused, WriteStates | WriteAssignment) and refusals < REFUSALS_MAX:
                await self._reread(refused)
                if not isinstance(event, Request | ControllerTick):
                    # The state machine has already processed this event, so do not pass it again.
                    # On SuspectsChanged, it looks for due elections again, in the states that were
                    # just read.
                    event = SuspectsChanged(self._suspects)
                continue
            token = getattr(event, "token", None)
            if token is not None:
                self._answer(
                    Answer(
                        token,
                        error=WriteConflictError(
                            "other writers changed the same metadata; try again"
                        ),
                    )
                )
            event = await self._load(anew=True)

    async def _reread(self, refused: WriteStates | WriteAssignment) -> None:
        """Read the partition states of a refused write again and pass them to the state machine."""
        changes = refused.changes if isinstance(refused, WriteStates) else refused.states
        while True:
            try:
                states = await loader.reread_states(self._store, changes)
            except CoordinationUnavailableError:
                await self._reconnected()
                continue
            self._machine.step(self._now_ms(), WriteRefused(states))
            return

    async def _carry_out(self, effects: list[ControllerEffect]) -> Write | None:
        """Carry out the state machine's decisions (effects) in order.

        Return the first write that ZooKeeper refused because this controller's metadata are stale,
        or None."""
        left = deque(effects)
        while left:
            effect = left.popleft()
            match effect:
                case Answer():
                    self._answer(effect)
                case Warn():
                    _log.warning("%s", effect.text)
                case _:
                    if not await self._write(effect):
                        return effect
                    written = self._machine.step(self._now_ms(), Written(effect))
                    left.extendleft(reversed(written))
        return None

    def _answer(self, effect: Answer) -> None:
        answer = self._answers.pop(effect.token, None)
        if answer is None or answer.done():
            return
        if effect.error is not None:
            answer.set_exception(effect.error)
            answer.exception()
        else:
            answer.set_result(effect)

    # Methods that write to ZooKeeper.

    async def _write(self, write: Write) -> bool:
        assert self._fence is not None
        directories = await self._directories() if isinstance(write, RemoveDisks) else {}
        operations = operations_of(
            write, features_version=self._features_version, directories=directories
        )
        while True:
            announcement = announce(self._notices, notice_content(write))
            whole = [self._fence, *operations, announcement.write]
            refused = await write_surely(self._store, whole, self._reconnected)
            if refused is None:
                self._notices = announcement.after
                if isinstance(write, WriteFeatures):
                    self._features_version += 1
                return True
            if refused.position == 0:
                raise _Deposed
            if refused.operation is not announcement.write:
                break
            await self._load_notices()
        _log.info(
            "ZooKeeper refused a write of %s (%s); the controller reads the znode again",
            refused.operation.path,
            refused.reason,
        )
        return False

    async def _directories(self) -> dict[str, znodes.DiskZnode]:
        while True:
            try:
                return await loader.load_disks(self._store)
            except CoordinationUnavailableError:
                await self._reconnected()

    async def _load_notices(self) -> None:
        while True:
            try:
                self._notices = await loader.load_notices(self._store)
                return
            except CoordinationUnavailableError:
                await self._reconnected()

    async def _reconnected(self) -> None:
        await asyncio.sleep(RETRY_S)
        await self._wait_connected()
        if self._store.session_id != self._session_id:
            raise _Deposed
