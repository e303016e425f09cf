"""Runs the commands of the console blocks that show output, and writes the new output into the pages.

    python docs/refresh_examples.py [README.md docs/tutorial.md ...]

Run it in the root of the repository after a change of what a command prints. The commands of a page share a new, empty library.
Commands that need a GPU, files or minutes belong in a block without output. A line `...` in an output stands for the lines that
the page leaves out: as many lines as now stay before and after it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"(?<=```console\n)(.*?)(?=```)", re.DOTALL)
PROGRAMS = {"generate": "generator", "hgemm": "hgemm"}


def refreshed(text: str, library: str) -> str:
    """Return a page with new output below every command of ours that has output."""

    def block(match: re.Match[str]) -> str:
        return re.sub(
            r"^(\$ .*\n)((?:(?!\$ ).*\n)*)", lambda one: one[1] + _output(one[1], one[2], library), match[1], flags=re.M
        )

    return BLOCK.sub(block, text)


def _output(line: str, old: str, library: str) -> str:
    program, _, words = line.removeprefix("$ ").rstrip("\n").partition(" ")
    if program not in PROGRAMS:
        return old
    command = f"{sys.executable} -m {PROGRAMS[program]} {words}"
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "HGEMM_LIBRARY": library,
        "COLUMNS": "100",
        "PYTHONUNBUFFERED": "1",
    }
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}  # in the order of a terminal
    output = subprocess.run(command, shell=True, text=True, cwd=ROOT, env=environment, **both).stdout
    if not old:
        return ""
    if "error:" in output and "error:" not in old:
        raise SystemExit(f"{line.rstrip()} fails:\n{output}")
    return _shortened(output, old)


def _shortened(output: str, old: str) -> str:
    """Return an output without the lines for which the old one has a line `...`."""
    before, dots, after = old.partition("\n...\n")
    if not dots:
        return output
    lines, first, last = output.splitlines(), before.count("\n") + 1, after.count("\n")
    return "\n".join([*lines[:first], "...", *lines[len(lines) - last :], ""])


def main(arguments: list[str]) -> None:
    for page in map(Path, arguments or PAGES):
        before = page.read_text(encoding="utf-8")
        if any(re.search(r"^[^$]", block, re.MULTILINE) for block in BLOCK.findall(before)):
            with tempfile.TemporaryDirectory() as library:
                after = refreshed(before, library)
            page.write_text(after, encoding="utf-8")
            print(f"{page}: {'changed' if after != before else 'same'}", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
