"""The state machines of transactions. They do no I/O and read no clock.

- ``transaction``: one transactional id, on its transaction coordinator
- ``participant``: the transactional producers of one partition, or of one group, that receives
  their writes
- ``sinks``: the transactions of Spark's exactly-once sinks
"""
