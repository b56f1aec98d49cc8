"""The broker: an asyncio shell around the pure packages, and the only package that composes
them.

Reading order: ``broker`` (start and stop), ``network`` (connections), ``dispatch`` (request to
handler), ``handlers`` (one module per API), ``partitions`` (replicas and disk I/O), ``cluster``
(ZooKeeper and the controller), ``coordinators`` (groups). All code runs on one loop thread, except
the threads of ``partitions.disk``.
"""
