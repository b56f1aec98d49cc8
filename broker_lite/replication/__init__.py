"""The state machines of a partition's replica and of the controller, without I/O and clock.

The callers in ``server/`` pass events in and carry out the returned effects. README.md describes
the roles of a replica and the invariants."""
