"""A cluster on this machine: ZooKeeper and brokers as child processes.

``logbus up``, the demo, the notebooks and the tests start a ``LocalCluster``. This package does not
import the broker; it runs brokers as ``python -m broker_lite broker``.
"""
