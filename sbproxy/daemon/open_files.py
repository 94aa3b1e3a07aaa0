"""Gives the process as many file descriptors as it may have: each client and each engine connection takes one."""

from __future__ import annotations

import logging
import resource

ENOUGH = 32_768
"""Above this nobody gains: the gateway's own connection limit is lower."""

_log = logging.getLogger(__name__)


def raise_limit() -> int:
    """Raise the soft limit towards the hard one and return it; a limit that cannot be raised is only logged."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:
            _log.warning("the limit of open files stays at %d: %s", soft, error)
        else:
            return wanted
    return soft
