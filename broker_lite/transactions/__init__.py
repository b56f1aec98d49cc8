"""The state machines of transactions, without I/O or a clock.

``transaction`` is the machine of one transactional id in its coordinator. ``participant`` tracks
the producers of a partition or group. ``sinks`` is the machine of Spark's exactly-once sinks.
"""
