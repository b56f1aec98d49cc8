"""Members of Kafka groups: consumers that share partitions through a coordinator broker.

Pure modules: ``assignors`` (the assignment algorithms), ``machine`` (a member's state machine, with
its vocabulary in ``events``), ``topics`` (subscriptions), ``errors`` (refusals and their cures),
``settings``. ``member`` carries effects out on the shell of the consumer. On the reader's side,
``kafka_membership`` implements the port of the reader core, and ``beginning`` finds start offsets
and commits. Read README.md first.
"""
