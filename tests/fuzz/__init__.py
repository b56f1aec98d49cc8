"""Send random input to all code that a client reaches before its login."""
