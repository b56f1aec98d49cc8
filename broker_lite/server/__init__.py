"""The broker: an asyncio shell around the pure parts, and the only package that composes them.

Reading order: ``broker`` (start and stop), ``listener`` and ``connection`` (bytes in and out),
``dispatch`` (request to handler), ``handlers`` (one file per API), ``replica_manager`` (partitions,
effects in order), ``disk`` (appends, group commit, cold reads), ``registry`` and ``controller``
(ZooKeeper). Everything runs on one loop thread but for what ``disk`` says runs on its own.
"""
