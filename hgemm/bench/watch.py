"""What becomes of a launch that never returns: the process ends, and a resumed run leaves its variant out."""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

_LOOK_S = 0.2


class Watch:
    """Holds each contender to a time. Its name lies in a file beside the results while it runs."""

    def __init__(self, keep: Path | None, limit_s: float) -> None:
        self.path = keep.with_name(f"{keep.name}.running") if keep else None
        self.limit_s, self._deadline, self._running = limit_s, float("inf"), ""
        self._over = threading.Event()
        threading.Thread(target=self._look, daemon=True).start()

    def unfinished(self) -> str:
        """Return what an earlier run did not come back from; nothing where there is no such."""
        if self.path:
            with suppress(OSError):
                return self.path.read_text(encoding="utf-8").strip()
        return ""

    def begin(self, name: str) -> None:
        """Note what is launched next."""
        if self.path:
            self.path.write_text(name, encoding="utf-8")
        self._running, self._deadline = name, time.monotonic() + self.limit_s

    def rest(self) -> None:
        """Note that everything has returned."""
        self._deadline = float("inf")
        if self.path:
            self.path.unlink(missing_ok=True)

    def stop(self) -> None:
        self._over.set()

    def _look(self) -> None:
        while not self._over.wait(_LOOK_S):
            if time.monotonic() > self._deadline:
                again = ": run again with --resume to go on without it" if self.path else ""
                print(
                    f"bench: {self._running} has not returned for {self.limit_s:g} s{again}",
                    file=sys.stderr,
                    flush=True,
                )
                os._exit(1)  # nothing else ends a process whose thread waits for the device
