"""Operations that all clients share: generators that yield the requests to send
(``transport.steps``).

- ``cluster``: the client's metadata of the cluster, with the partitions' leaders
- ``requests``: metadata and producer ids, with the retry policy
- ``offset_requests``: log offsets by time or by size, and the times of records
- ``group_requests``, ``transaction_requests``, ``sink_requests``: requests to coordinators
- ``overdue``: detection of leaders that hang
- ``bounds``: checks of arguments

An operation does no I/O and reads no clock. A *shell* (see ``transport``), or a simulator in
tests, sends its requests."""
