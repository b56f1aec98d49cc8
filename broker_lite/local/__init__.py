"""A cluster on this machine: a real ZooKeeper and real brokers as child processes.

``LocalCluster`` is what ``logbus up``, the demo, the notebooks and the tests start. Nothing here
knows the broker's inside: brokers are started as ``python -m broker_lite broker``.
"""
