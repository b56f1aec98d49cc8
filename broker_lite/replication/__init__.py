"""The state machines of a partition's replica and of the controller, without I/O or a clock.

README.md describes the roles of a replica and the invariants.
"""
