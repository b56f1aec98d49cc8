"""Random input for everything that a client reaches before its login."""
