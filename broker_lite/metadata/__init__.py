"""Cluster metadata: what ZooKeeper holds, how it is spelt, and the snapshot brokers read."""
