"""Members of Kafka groups: consumers that share partitions through a coordinator broker.

- ``assignors``: the assignment algorithms
- ``machine``, ``events``: a member as a state machine without I/O. It receives events, such as a
  response, and returns effects, such as a request to send.
- ``topics``, ``errors``, ``settings``: subscriptions, explanations of errors, settings
- ``member``: runs the state machine and carries out its effects
- ``kafka_membership``: implements the interface between a consumer's reader and its group
- ``beginning``: looks up starting offsets, and commits offsets

Read README.md first.
"""
