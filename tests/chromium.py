"""A browser without a window, for tests of pages: what a page became, what its console said, and how it looks."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import pytest

_QUIET = (
    "--headless --no-sandbox --disable-gpu --disable-background-networking --disable-component-update --no-first-run"
)
_OFFLINE = "--host-resolver-rules=MAP * ~NOTFOUND"


def need_chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("no chromium here, which opens the page (Debian's package chromium): nothing is opened")
    return found


@dataclass(frozen=True)
class Page:
    """A page after its scripts have run: its document, and what the console said."""

    html: str
    console: list[str]

    def texts(self, tag: str, within: str = "") -> list[str]:
        """Return the text of every element of this tag, of those inside the element with the id `within` where one is given."""
        reader = _Texts(tag, within)
        reader.feed(self.html)
        return [" ".join("".join(parts).split()) for parts in reader.found]


def opened(path: Path, folder: Path, at: str = "", *more: str) -> Page:
    """Open a file at `#at` and return what it became; nothing outside this machine can be reached."""
    profile = f"--user-data-dir={folder / 'profile'}"
    words = [
        need_chromium(),
        *_QUIET.split(),
        _OFFLINE,
        profile,
        "--virtual-time-budget=20000",
        "--enable-logging=stderr",
    ]
    done = subprocess.run(
        [*words, *more, "--dump-dom", f"{path.as_uri()}#{at}"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return Page(done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line])


class _Texts(HTMLParser):
    """Collects the texts of elements of one tag, all of them or those below the element of an id."""

    VOID = {"meta", "link", "input", "img", "wbr", "br", "hr"}

    def __init__(self, tag: str, within: str) -> None:
        super().__init__()
        self._tag, self._within = tag, within
        self._stack: list[tuple[str, bool, list[str] | None]] = []
        self.found: list[list[str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in self.VOID:
            return
        inside = bool(self._stack and self._stack[-1][1]) or dict(attrs).get("id") == self._within or not self._within
        own: list[str] | None = [] if inside and tag == self._tag else None
        if own is not None:
            self.found.append(own)
        self._stack.append((tag, inside, own))

    def handle_endtag(self, tag: str) -> None:
        while self._stack and self._stack.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        for _, _, own in self._stack:
            if own is not None:
                own.append(data)
