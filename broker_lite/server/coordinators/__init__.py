"""Coordinators of consumer groups: the shell of the pure package ``coordinator``."""
