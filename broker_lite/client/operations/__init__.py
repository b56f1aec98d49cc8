"""What every client asks of a cluster, each question once, as generators over ``transport.steps``.

``cluster``: who leads what, and when to try again. ``requests``: metadata, offsets of logs,
identity; ``group_requests``: what a group's coordinator is asked. ``bounds``: numbers that callers
give. No I/O, no clock: shells carry the steps out, and so does the simulator.
"""
