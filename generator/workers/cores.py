"""The cores of this machine that are ours."""

from __future__ import annotations

import os


def cores() -> int:
    """Return how many processes this one may keep busy."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
