"""The state machines of a partition's replica and of the controller. They do no I/O and read no
clock: the callers in ``server/`` pass events in and carry out the returned effects.

README.md describes the roles of a replica and the invariants.
"""
