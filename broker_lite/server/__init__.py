"""The broker: an asyncio shell around the pure packages, and the only package that composes them.

Reading order: ``broker`` (start and stop), ``network`` (bytes in and out), ``dispatch`` (request to
handler), ``handlers`` (one file an API), ``partitions`` (replicas and the disk), ``cluster``
(ZooKeeper and the controller), ``coordinators`` (groups). Everything runs on one loop thread but
for the threads of ``partitions.disk``.
"""
