"""Stands for controller, and carries out what ``replication.controller`` decides. Loop thread.

Elected by one write that creates the ephemeral /controller and raises /controller_epoch; every
write afterwards checks that epoch's version, so a deposed controller writes nothing. Events are
taken one at a time, the next when every write of the one before is done. A write whose answer was
lost is decided by reading; one refused for another reason than the fence means that ZooKeeper holds
something else than we know: everything is read again. Nothing survives the loss of the session.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from broker_lite.errors import (
    CoordinationUnavailableError,
    LogbusError,
    NotControllerError,
    WriteConflictError,
)
from broker_lite.metadata import loader, znodes
from broker_lite.metadata.store import (
    RETRY_S,
    Check,
    Create,
    Delete,
    MetadataStore,
    Operation,
    Set,
    write_surely,
)
from broker_lite.model import PartitionView, TopicView
from broker_lite.replication.controller import (
    Answer,
    BrokersChanged,
    ConfigChangeRequested,
    Controller,
    ControllerEffect,
    ControllerEvent,
    Loaded,
    PartitionsRequested,
    RemoveTopic,
    TopicCreationRequested,
    TopicDeletionRequested,
    Warn,
    Write,
    WriteConfig,
    WriteFeatures,
    WritePartitions,
    WriteStates,
    WriteTopic,
    Written,
)

_log = logging.getLogger(__name__)

GIVE_UP_AFTER_S = 1.0
"""A pause, so that brokers that all fail do not elect each other without end."""

Request = (
    TopicCreationRequested | TopicDeletionRequested | PartitionsRequested | ConfigChangeRequested
)


class Deposed(Exception):
    """Another broker is controller, or our session ended; never leaves this module."""


class ControllerShell:
    """One broker's candidacy. ``wait_connected`` returns on the next connection of any session."""

    def __init__(
        self,
        store: MetadataStore,
        broker_id: int,
        *,
        wait_connected: Callable[[], Awaitable[None]],
    ) -> None:
        self._store = store
        self._broker_id = broker_id
        self._wait_connected = wait_connected
        self._machine = Controller()
        self._fence: Check | None = None
        self._epoch = 0
        self._session_id = 0
        self._requests: deque[Request] = deque()
        self._brokers_changed = False
        self._awake = asyncio.Event()
        self._answers: dict[int, asyncio.Future[TopicView]] = {}
        self._next_token = 0
        self._task: asyncio.Task[None] | None = None
        self._features_version = 0
        self._notices = loader.Notices(-1, ())

    @property
    def is_active(self) -> bool:
        return self._fence is not None

    async def stand(self, broker_epoch: int, own_epochs: frozenset[int]) -> None:
        """Become controller if there is none; set a watch on /controller in any case.

        A controller of this broker from before its present process is dead: it is removed.
        """
        while True:
            present = await self._store.get(znodes.CONTROLLER, watch=True)
            epoch = await self._store.get(znodes.CONTROLLER_EPOCH)
            assert epoch is not None
            if present is not None:
                if present.session_id == self._store.session_id:
                    if self._fence is not None:
                        return
                    # Made by a write whose answer was lost. Nobody else was elected if it is there
                    # still, so the epoch that was read is ours.
                    if await self._store.get(znodes.CONTROLLER) == present:
                        number = znodes.decode_controller_epoch(znodes.CONTROLLER_EPOCH, epoch.data)
                        self._begin(present.session_id, number, epoch.version)
                        return
                    continue
                self._resign_if_active()
                broker_id, held_by = znodes.decode_controller(znodes.CONTROLLER, present.data)
                if broker_id != self._broker_id or held_by in own_epochs:
                    return
                await self._store.write(
                    [
                        Check(znodes.CONTROLLER_EPOCH, epoch.version),
                        Delete(znodes.CONTROLLER, present.version),
                    ]
                )
                continue
            self._resign_if_active()
            number = znodes.decode_controller_epoch(znodes.CONTROLLER_EPOCH, epoch.data) + 1
            session_id = self._store.session_id
            refused = await self._store.write(
                [
                    Create(
                        znodes.CONTROLLER,
                        znodes.encode_controller(self._broker_id, broker_epoch),
                        ephemeral=True,
                    ),
                    Set(
                        znodes.CONTROLLER_EPOCH,
                        znodes.encode_controller_epoch(number),
                        epoch.version,
                    ),
                ]
            )
            if refused is None:
                self._begin(session_id, number, epoch.version + 1)

    def resign(self, error: LogbusError | None = None) -> None:
        """Stop at once; what is asked of us fails."""
        if self._fence is not None:
            _log.info("broker %d is no longer controller", self._broker_id)
        self._fence = None
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._requests.clear()
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            if not answer.done():
                answer.set_exception(error or NotControllerError())
                answer.exception()

    def brokers_changed(self) -> None:
        """Brokers came or went; who lives is read when the decision is made."""
        if self._fence is not None and not self._brokers_changed:
            self._brokers_changed = True
            self._awake.set()

    async def request(self, make: Callable[[int], Request]) -> TopicView:
        """Have a request decided and done; ``make`` is given its token.

        Raises NotControllerError, CoordinationUnavailableError, WriteConflictError and whatever
        the request's own error is.
        """
        if self._fence is None:
            raise NotControllerError()
        if not self._store.connected:
            raise CoordinationUnavailableError("ZooKeeper does not answer; try again later")
        token = self._next_token = self._next_token + 1
        answer: asyncio.Future[TopicView] = asyncio.get_running_loop().create_future()
        self._answers[token] = answer
        self._requests.append(make(token))
        self._awake.set()
        return await asyncio.shield(answer)

    # Office.

    def _begin(self, session_id: int, epoch: int, version: int) -> None:
        _log.info("broker %d is controller in epoch %d", self._broker_id, epoch)
        self._fence = Check(znodes.CONTROLLER_EPOCH, version)
        self._epoch = epoch
        self._session_id = session_id
        self._machine = Controller()
        self._requests.clear()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def _resign_if_active(self) -> None:
        if self._fence is not None:
            self.resign()

    async def _run(self) -> None:
        try:
            await self._reload()
            while True:
                self._awake.clear()
                while self._brokers_changed or self._requests:
                    await self._take_next()
                await self._awake.wait()
        except Deposed:
            self._task = None
            self.resign()
            # Where /controller is ours although the epoch is not, let somebody be elected.
            await self._give_up()
        except Exception:
            # A mistake of ours must not leave the cluster with a controller that does nothing.
            _log.exception("the controller of broker %d failed; it gives up", self._broker_id)
            self._task = None
            self.resign()
            await asyncio.sleep(GIVE_UP_AFTER_S)
            await self._give_up()

    async def _give_up(self) -> None:
        try:
            present = await self._store.get(znodes.CONTROLLER)
            if present is not None and present.session_id == self._store.session_id:
                await self._store.write([Delete(znodes.CONTROLLER, present.version)])
        except CoordinationUnavailableError:
            _log.info("ZooKeeper will end the session instead")

    async def _reload(self) -> None:
        """Read everything and decide; begins again for as long as ZooKeeper holds other things."""
        while True:
            try:
                await self._store.sync("/")
                self._notices = await loader.load_notices(self._store)
                features = await self._store.get(znodes.FEATURES)
                assert features is not None
                self._features_version = features.version
                event = Loaded(
                    self._epoch,
                    await loader.load_brokers(self._store),
                    await loader.load_topics(self._store),
                    znodes.decode_features(znodes.FEATURES, features.data),
                )
            except CoordinationUnavailableError:
                await self._reconnected()
                continue
            if await self._carry_out(self._machine.step(event)):
                return

    async def _take_next(self) -> None:
        event: ControllerEvent
        if self._brokers_changed:
            self._brokers_changed = False
            try:
                event = BrokersChanged(await loader.load_brokers(self._store))
            except CoordinationUnavailableError:
                self._brokers_changed = True
                await self._reconnected()
                return
        else:
            event = self._requests.popleft()
        if not await self._carry_out(self._machine.step(event)):
            await self._reload()

    async def _carry_out(self, effects: list[ControllerEffect]) -> bool:
        """False: a write was refused because ZooKeeper holds something else than we know."""
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
                        return False
                    left.extendleft(reversed(self._machine.step(Written(effect))))
        return True

    def _answer(self, effect: Answer) -> None:
        answer = self._answers.pop(effect.token, None)
        if answer is None or answer.done():
            return
        if effect.error is not None:
            answer.set_exception(effect.error)
            answer.exception()
        else:
            assert effect.topic is not None
            answer.set_result(effect.topic)

    # Writes.

    async def _write(self, write: Write) -> bool:
        assert self._fence is not None
        topics = _changed_topics(write)
        while True:
            notices = self._notices
            change = znodes.Change(notices.sequence + 1, topics)
            kept = znodes.kept_changes((*notices.changes, change))
            notice = Set(znodes.CHANGES, znodes.encode_changes(kept), notices.sequence)
            operations = [self._fence, *self._operations(write), notice]
            refused = await write_surely(self._store, operations, self._reconnected)
            if refused is None:
                self._notices = loader.Notices(change.sequence, kept)
                if isinstance(write, WriteFeatures):
                    self._features_version += 1
                return True
            if refused.position == 0:
                raise Deposed
            if refused.operation is not notice:
                break
            await self._load_notices()
        _log.warning("%s was %s; reading everything again", refused.operation.path, refused.reason)
        token = getattr(write, "token", None)
        if token is not None:
            self._answer(Answer(token, error=WriteConflictError("try again")))
        return False

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
            raise Deposed

    def _operations(self, write: Write) -> list[Operation]:
        match write:
            case WriteTopic():
                return _create_topic(write.topic)
            case WritePartitions():
                added = write.topic.partitions[write.first_added :]
                path = znodes.topic_path(write.topic.name)
                return [
                    *_create_partitions(write.topic.name, added),
                    Set(path, _assignment(write.topic)),
                ]
            case RemoveTopic():
                return _delete_topic(write.topic)
            case WriteConfig():
                path = znodes.topic_config_path(write.topic.name)
                return [Set(path, znodes.encode_config(write.topic.config))]
            case WriteStates():
                return [
                    Set(
                        znodes.state_path(change.topic, change.partition),
                        znodes.encode_state(change.state),
                        change.state.version,
                    )
                    for change in write.changes
                ]
            case WriteFeatures():
                data = znodes.encode_features(write.features)
                return [Set(znodes.FEATURES, data, self._features_version)]


def _changed_topics(write: Write) -> dict[str, tuple[int, ...] | None]:
    """What the notice of a write names; nothing stands for the cluster itself."""
    match write:
        case WriteFeatures():
            return {}
        case WriteStates():
            rows: dict[str, list[int]] = {}
            for change in write.changes:
                rows.setdefault(change.topic, []).append(change.partition)
            return {name: tuple(row) for name, row in rows.items()}
    return {write.topic.name: None}


def _assignment(topic: TopicView) -> bytes:
    replicas = tuple(view.replicas for view in topic.partitions)
    return znodes.encode_assignment(znodes.Assignment(topic.topic_id, replicas))


def _create_topic(topic: TopicView) -> list[Operation]:
    return [
        Create(znodes.topic_path(topic.name), _assignment(topic)),
        Create(znodes.topic_config_path(topic.name), znodes.encode_config(topic.config)),
        Create(znodes.partitions_path(topic.name)),
        *_create_partitions(topic.name, topic.partitions),
    ]


def _create_partitions(topic: str, partitions: tuple[PartitionView, ...]) -> list[Operation]:
    operations: list[Operation] = []
    for view in partitions:
        state = dataclasses.replace(view.state, version=0)
        operations += [
            Create(znodes.partition_path(topic, view.partition)),
            Create(znodes.state_path(topic, view.partition), znodes.encode_state(state)),
        ]
    return operations


def _delete_topic(topic: TopicView) -> list[Operation]:
    operations: list[Operation] = []
    for view in topic.partitions:
        operations += [
            Delete(znodes.state_path(topic.name, view.partition)),
            Delete(znodes.partition_path(topic.name, view.partition)),
        ]
    return [
        *operations,
        Delete(znodes.partitions_path(topic.name)),
        Delete(znodes.topic_config_path(topic.name)),
        Delete(znodes.topic_path(topic.name)),
    ]
