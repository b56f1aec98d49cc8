"""What a handler may use, in one frozen record: made once by ``broker``, passed to every handler.

Handlers run on the loop thread and block it for no longer than 5 ms; what may take longer goes
through ``disk``. Nothing here imports a handler or the listener.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker_lite.config import BrokerConfig
from broker_lite.model import Endpoint
from broker_lite.server.clock import Clock
from broker_lite.server.cluster.registry import Registry
from broker_lite.server.coordinators.group_coordinator import GroupCoordinator
from broker_lite.server.metrics import Metrics
from broker_lite.server.partitions.disk import Disk
from broker_lite.server.partitions.replica_manager import ReplicaManager
from broker_lite.storage.manager import LogManager


@dataclass(frozen=True, slots=True)
class Parts:
    """The broker's parts, as handlers see them.

    ``endpoint`` is where clients are told to find this broker.
    """

    config: BrokerConfig
    clock: Clock
    registry: Registry
    replicas: ReplicaManager
    logs: LogManager
    disk: Disk
    metrics: Metrics
    endpoint: Endpoint
    groups: GroupCoordinator

    @property
    def broker_id(self) -> int:
        return self.config.broker_id

    def cluster_id(self) -> str:
        """The cluster's id, as the registry read it at start."""
        return self.registry.snapshot.cluster_id
