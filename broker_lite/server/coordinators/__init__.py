"""Run the group coordinator and the transaction coordinator of this broker: I/O, timers and writes
around the state machines of the packages ``coordinator`` and ``transactions``.
"""
