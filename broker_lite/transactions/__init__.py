"""The state machines of transactions. They do no I/O and read no clock.

- ``transaction``: one transactional id, on its transaction coordinator
- ``participant``: the transactional producers that write to one partition or one group
- ``sinks``: the transactions of Spark's exactly-once sinks
- ``keyed_state``: the keys and values in one partition of the transaction log"""
