"""The group coordinator and the transaction coordinator of this broker.

They do the I/O, timers and writes around the state machines in the packages ``coordinator`` and
``transactions``.
"""
