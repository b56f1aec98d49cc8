"""The state machines of transactions, without I/O or a clock.

``transaction`` is one transactional id in its coordinator, and ``participant`` the producers of a
partition or group. ``sinks`` holds Spark's exactly-once sinks.
"""
