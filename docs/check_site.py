"""Opens every page of the built site in headless Chromium, and reports what is wrong with it.

    python docs/check_site.py [build/site]

Checks: no broken internal link or anchor, no file of another host, no horizontal scroll at 1280 and 390 pixels, no
console error, no snippet that was left out. Exit status: 0 the site is sound, 1 it is not, 77 Chromium is not installed
(Debian's package chromium).
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
WIDTHS_PX = (1280, 390)
NO_CHROMIUM = 77
OPTIONS = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
--disable-component-update --disable-sync --remote-debugging-pipe""".split()
OFFLINE = "--host-resolver-rules=MAP * ~NOTFOUND"

READ_PAGE = """({
  ids: [...document.querySelectorAll('[id],a[name]')].map(e => e.id || e.name),
  links: [...document.querySelectorAll('a[href]')].map(e => e.href),
  files: [...document.querySelectorAll('img,script[src],iframe[src]')].map(e => e.src)
    .concat([...document.querySelectorAll('link[rel=stylesheet],link[rel=icon]')].map(e => e.href)).filter(Boolean),
  snippets: document.body.innerText.split('\\n').filter(line => /--8\\s*</.test(line)),
})"""
READ_WIDTH = "[document.documentElement.scrollWidth, window.innerWidth]"


def find_chromium() -> str | None:
    """Return the path of Chromium or Chrome, or None."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """Chromium without a window, driven by the DevTools protocol over a pair of pipes."""

    def __init__(self, program: str, profile: Path) -> None:
        commands, self._out = _pipe()
        self._in, answers = _pipe()
        words = [program, *OPTIONS, OFFLINE, f"--user-data-dir={profile}", "about:blank"]
        # Chromium reads commands from descriptor 3 and writes answers to descriptor 4.
        actions = [(os.POSIX_SPAWN_DUP2, commands, 3), (os.POSIX_SPAWN_DUP2, answers, 4)]
        actions.append((os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0))
        self._process = os.posix_spawn(program, words, os.environ, file_actions=actions)
        os.close(commands), os.close(answers)
        self._received, self._id, self._session = b"", 0, ""
        self.errors: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        os.kill(self._process, signal.SIGTERM)
        os.waitpid(self._process, 0)
        os.close(self._out), os.close(self._in)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command and return its result."""
        self._id += 1
        message = {"id": self._id, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data) :]
        answer = self._read_until(lambda received: received.get("id") == self._id)
        if "error" in answer:
            raise RuntimeError(f"Chromium rejected {method}: {answer['error'].get('message')}")
        return answer["result"]

    def open(self, url: str) -> None:
        """Load a page and wait for its load event."""
        self.call("Page.navigate", url=url)
        self._read_until(lambda received: received.get("method") == "Page.loadEventFired")

    def resize(self, width_px: int) -> None:
        """Show the page in a window of this width; narrow windows are those of a phone."""
        mobile = width_px < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width_px, height=900, deviceScaleFactor=1, mobile=mobile)

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"]["value"]

    def _read_until(self, wanted: Any) -> dict[str, Any]:
        while True:
            received = json.loads(self._read_message())
            self._note_error(received.get("method"), received.get("params", {}))
            if wanted(received):
                return received

    def _read_message(self) -> bytes:
        while b"\0" not in self._received:
            part = os.read(self._in, 1 << 16)
            if not part:
                raise RuntimeError("Chromium ended before it answered")
            self._received += part
        message, _, self._received = self._received.partition(b"\0")
        return message

    def _note_error(self, method: str | None, parameters: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.errors.append(str(parameters["exceptionDetails"].get("text")))
        if method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "assert"):
            self.errors.append(" ".join(str(word.get("value", "")) for word in parameters["args"]))
        if method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")


def _pipe() -> tuple[int, int]:
    """Return the two ends of a pipe, above the descriptors that Chromium uses."""
    low = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in low)
    for end in low:
        os.close(end)
    return high


@contextmanager
def browser(program: str) -> Iterator[Browser]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        opened = Browser(program, Path(profile))
        try:
            yield opened
        finally:
            opened.close()


@dataclass
class Checked:
    """What was read of a site: the ids of each page, the links between pages, and the faults found so far."""

    ids: dict[Path, set[str]] = field(default_factory=dict)
    links: list[tuple[Path, str]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def check_site(site: Path, program: str) -> tuple[int, list[str]]:
    """Return the number of pages of a built site, and its faults, a line each."""
    site = site.resolve()
    pages = sorted(path for path in site.rglob("*.html") if path.name != "404.html")
    checked = Checked()
    with browser(program) as chromium:
        for page in pages:
            _check_page(chromium, site, page, checked)
    checked.faults += [fault for page, url in checked.links if (fault := _link_fault(site, page, url, checked.ids))]
    return len(pages), sorted(set(checked.faults))


def _check_page(chromium: Browser, site: Path, page: Path, checked: Checked) -> None:
    name = page.relative_to(site)
    chromium.errors.clear()
    chromium.resize(WIDTHS_PX[0])  # the page lays itself out for this width when it is loaded
    chromium.open(page.as_uri())
    for width_px in WIDTHS_PX:
        chromium.resize(width_px)
        content_px, window_px = chromium.evaluate(READ_WIDTH)
        if content_px > width_px or window_px > width_px:
            checked.faults.append(f"{name}: {max(content_px, window_px)} px wide in a window of {width_px} px")
    read = chromium.evaluate(READ_PAGE)
    checked.ids[page] = set(read["ids"])
    checked.links += [(page, url) for url in read["links"]]
    checked.faults += [f"{name}: loads {url}" for url in read["files"] if urlsplit(url).scheme not in ("file", "data")]
    checked.faults += [f"{name}: the snippet {line.strip()} is not filled in" for line in read["snippets"]]
    checked.faults += [f"{name}: console: {error}" for error in chromium.errors]


def _link_fault(site: Path, page: Path, url: str, ids: dict[Path, set[str]]) -> str:
    """Return what is wrong with a link, or nothing. Links to other hosts are not followed."""
    parts = urlsplit(url)
    if parts.scheme != "file":
        return ""
    target, anchor = Path(unquote(parts.path)), unquote(parts.fragment)
    target = target / "index.html" if target.is_dir() else target
    name = page.relative_to(site)
    if site not in target.parents or not target.is_file():
        return f"{name}: broken link {target}"
    if anchor and target in ids and anchor not in ids[target]:
        return f"{name}: broken anchor {target.relative_to(site)}#{anchor}"
    return ""


def main(arguments: list[str]) -> int:
    site = Path(arguments[0]) if arguments else ROOT / "build" / "site"
    if not (site / "index.html").is_file():
        print(f"{site} has no index.html: run make docs", file=sys.stderr)
        return 1
    program = find_chromium()
    if program is None:
        print("Chromium is not installed: apt-get install chromium", file=sys.stderr)
        return NO_CHROMIUM
    pages, faults = check_site(site, program)
    print(*faults, f"{pages} pages, {len(faults)} faults", sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
