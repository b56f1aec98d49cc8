"""Transactions: the state machines of a transactional id and of a participant, without I/O."""
