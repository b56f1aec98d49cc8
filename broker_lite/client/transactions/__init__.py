"""Transactions of a producer: records and group offsets that become visible together, or never.

``machine`` decides, without I/O. ``runner`` runs its effects on the shell of a producer, so that
the blocking and the asyncio producer share one protocol.
"""
