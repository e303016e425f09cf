"""A headless browser for tests of pages: it returns the rendered page and the messages of its console."""

from __future__ import annotations

import atexit
import functools
import sys
import tempfile
import time
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "docs"))
from check_site import Browser, find_chromium  # noqa: E402

_READY = """(() => {
  const asked = decodeURIComponent(location.hash).match(/^#kernel=(.*)$/s);
  const rows = JSON.parse(document.getElementById("data").textContent).rows;
  return !asked || !rows.some(row => row[0] === asked[1]) || document.getElementById("kernel").dataset.ready === asked[1];
})()"""
"""Whether a report shows what its address asks for; the pages of kernels are unpacked after the load event."""
_PATIENCE_S = 60


CHROMIUM = find_chromium() or ""
needs_chromium = pytest.mark.skipif(
    not CHROMIUM, reason="no chromium here, which opens the page (Debian's package chromium)"
)


@functools.cache
def _browser() -> Browser:
    """Return the browser of this process: starting one takes longer than opening a page."""
    profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    started = Browser(CHROMIUM, Path(profile.name))
    atexit.register(profile.cleanup)
    atexit.register(started.close)
    return started


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


def opened(path: Path, at: str = "") -> Page:
    """Open a report at `#at` and return what it became; nothing outside this machine can be reached."""
    browser = _browser()
    browser.open("about:blank")  # another address of the same file would not load it again
    browser.errors.clear()
    browser.open(f"{path.as_uri()}#{quote(at, safe='=&')}")
    end = time.monotonic() + _PATIENCE_S
    while not browser.evaluate(_READY):
        assert time.monotonic() < end, "the page is not ready"
        time.sleep(0.02)
    return Page(browser.evaluate("document.documentElement.outerHTML"), [*browser.errors])


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
