"""Why a server cannot listen on an address."""

from __future__ import annotations

import errno


def why_not_listening(error: OSError) -> str:
    """Return the reason of a failed ``bind``, with the cure if the address is the cause."""
    if error.errno == errno.EADDRNOTAVAIL:
        return (
            "the address is not of this machine; give one of its own addresses, or 0.0.0.0 for all "
            "of them"
        )
    return error.strerror or str(error)
