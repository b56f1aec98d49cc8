"""The state machines of transactions. They do no I/O and read no clock.

- ``transaction``: one transactional id, on its transaction coordinator
- ``participant``: the transactional producers that write to one partition or one group
- ``sinks``: all Spark exactly-once sinks of one partition of the transaction log; ``sink``: one of
  them
- ``keyed_state``: the keys and values in one partition of the transaction log"""
