"""Operations that all clients share, as generators over ``transport.steps``.

- ``cluster``: partition leaders and the retry policy
- ``requests``: metadata, log offsets, producer ids
- ``group_requests``, ``transaction_requests``, ``sink_requests``: requests to coordinators
- ``bounds``: checks of arguments

An operation does no I/O and reads no clock. A shell, or the simulator, runs its steps.
"""
