"""Members of Kafka groups: consumers that share partitions through a coordinator broker.

Pure modules: ``assignors`` (the assignment algorithms), ``machine`` (a member's state machine, with
its events and effects in ``events``), ``topics`` (subscriptions), ``errors`` (explanations of
coordinator errors), ``settings``. ``member`` executes the effects on the shell of the consumer. On
the reader's side, ``kafka_membership`` implements the port of the reader core, and ``beginning``
finds start offsets and commits. Read README.md first.
"""
