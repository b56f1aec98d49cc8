"""Cluster metadata: what ZooKeeper holds, how it is spelt, and the snapshot brokers read.

In reading order: ``znodes`` (every path and its JSON), ``store`` (the port to ZooKeeper),
``zookeeper`` (kazoo behind it), ``cache`` and ``loader`` (the snapshot, and reading it),
``notices`` (how all brokers hear of a change), ``registration``, ``producer_ids``; of groups
``group_claims`` (who writes their offsets), ``group_offsets``, ``group_writer``,
``native_members``. Who uses it is the server; of the client only native groups and discovery.
"""
