"""Explain why a server cannot listen on an address."""

from __future__ import annotations

import errno


def why_not_listening(error: OSError) -> str:
    """Return the reason why ``bind`` raised ``error``, and what to do if the address is not one of
    this machine."""
    if error.errno == errno.EADDRNOTAVAIL:
        return (
            "the address is not of this machine; give one of its own addresses, or 0.0.0.0 for all "
            "of them"
        )
    return error.strerror or str(error)
