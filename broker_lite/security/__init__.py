"""Decisions of security without I/O: who may do what, and what logins and certificates prove."""
