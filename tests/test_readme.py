"""The README is true: its commands do what it shows, what it links to is there, and what it says is not yet there is not."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from conftest import ROOT, call

from generator.executor.host_compiler import CANDIDATES

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
FIRST = "$ generate --arch sm_89 --tile 128x128x32\n"
"""What `make generate` runs."""


def commands() -> list[tuple[list[str], list[str]]]:
    """Return every command of ours that is shown, in order, with the lines shown as its output."""
    text = FIRST + "".join(BLOCKS)
    found = [(shlex.split(words), said.splitlines()) for words, said in re.findall(r"\$ (.*)\n((?:[^$].*\n)*)", text)]
    return [(words, said) for words, said in found if words[0] in ("generate", "hgemm")]


def masked(lines: list[str]) -> list[str]:
    """Leave out what differs from run to run: seconds, and the width of their column."""
    return [re.sub(r" +(seconds|[\d.]+)(?=  (status|built|cached))|, [\d.]+ s$", "", line) for line in lines]


def test_the_commands_print_what_is_shown(tmp_path: Path) -> None:
    shown = [command for command in commands() if command[1]]
    assert len(shown) == 5
    for words, said in shown:
        if "--emulate" in words and not any(map(shutil.which, CANDIDATES)):
            continue  # the tests that need a C++ compiler are skipped aloud elsewhere
        done = call(*words, cwd=tmp_path)
        assert masked((done.stderr + done.stdout).splitlines()) == masked(said), words


def test_the_first_command_is_that_of_the_makefile() -> None:
    assert f"ARGS ?= {FIRST.removeprefix('$ generate ').strip()}\n" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("words", [words for words, said in commands() if not said], ids=" ".join)
def test_commands_without_output_are_legal(words: list[str], tmp_path: Path) -> None:
    assert call(*words, "--dry-run", cwd=tmp_path).returncode == 0


def test_every_link_leads_somewhere() -> None:
    for name in ("README.md", "CONTRIBUTING.md", "THIRD_PARTY.md", "CHANGELOG.md"):
        links = re.findall(r"\]\((?!https?:)([^)#]+)\)", (ROOT / name).read_text(encoding="utf-8"))
        assert not [link for link in links if not (ROOT / link).exists()], name


def test_every_file_that_is_named_is_there() -> None:
    for name in ("README.md", "CONTRIBUTING.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        paths = re.findall(r"`((?:generator|hgemm|templates|tests|benchmarks|docs|examples)/[\w./-]*)`", text)
        assert paths and not [path for path in paths if not (ROOT / path).exists()], name


def test_what_is_not_yet_there_is_not() -> None:
    verbs = {path.stem for path in (ROOT / "generator" / "verbs").glob("*.py")}
    (listed,) = re.findall(r"## Not yet\n(.*?)\n## ", README, re.DOTALL)
    assert not {*re.findall(r"`(?:hgemm )?([a-z]+)`", listed)} & verbs


def test_the_names_in_the_example_are_the_emitted_ones() -> None:
    shipped = {path.parent.name for path in (ROOT / "emitted").glob("*/kernel.cu")}
    (shown,) = re.findall(r"^`(hgemm_\w+)`$", README, re.MULTILINE)
    assert shown in shipped


def test_the_c_program_says_what_is_shown() -> None:
    (said,) = re.findall(r"\$ examples/c/multiply\n(.*)\n(.*)\n", README)
    sources = [ROOT / "templates" / "c" / "src" / "driver.c", ROOT / "examples" / "c" / "multiply.c"]
    assert all(line in source.read_text() for line, source in zip(said, sources))
