"""Members of Kafka groups: consumers that share partitions through a coordinator broker.

- ``assignors``: the assignment algorithms
- ``machine``, ``events``: a member as a state machine, with its events and effects
- ``topics``, ``errors``, ``settings``: subscriptions, explanations of errors, settings
- ``member``: carries out the effects on the consumer's shell
- ``kafka_membership``: implements the reader core's interface to a group
- ``beginning``: looks up starting offsets, and commits

Read README.md first.
"""
