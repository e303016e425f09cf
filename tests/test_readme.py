"""README and docs are true: commands do what is shown, links lead somewhere, and what is not yet there is not."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import click
import pytest
from conftest import ROOT, call

from generator.cli import generate_command, hgemm_command
from generator.executor.host_compiler import CANDIDATES

README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "THIRD_PARTY.md", "CHANGELOG.md")] + DOCS
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


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS], ids=lambda page: page.name)
def test_commands_that_are_named_have_the_verbs_and_options_that_are_named(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    lines = re.findall(r"^    ((?:generate|hgemm) .*)|`((?:generate|hgemm) (?!VERB|--)[^`]*)`", text, re.MULTILINE)
    for line in map("".join, lines):
        program, *words = shlex.split(line, comments=True)
        command = generate_command if program == "generate" else hgemm_command.get_command(None, words.pop(0))
        assert command, line
        command.make_parser(click.Context(command)).parse_args(words)  # raises where there is no such option


def anchors(page: Path) -> set[str]:
    """Return what a code host makes of a page's headings, to link to."""
    headings = re.findall(r"^#+ (.*)", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", page.read_text(encoding="utf-8"))
    for path, anchor in links:
        target = page.parent / path if path else page
        assert target.exists(), path
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}"


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS], ids=lambda page: page.name)
def test_every_file_that_is_named_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    paths = re.findall(r"`((?:generator|hgemm|templates|tests|benchmarks|docs|examples)/[\w./-]*)`", text)
    paths += [
        name.replace(".", "/") + ".py" for name in re.findall(r"python -m ((?:generator|benchmarks)\.[\w.]+)", text)
    ]
    assert not [path for path in paths if not (ROOT / path).exists()]


def test_every_page_is_linked_from_the_first() -> None:
    assert not [page.name for page in DOCS if f"](docs/{page.name})" not in README]


def test_what_is_not_yet_there_is_not() -> None:
    verbs = {path.stem for path in (ROOT / "generator" / "verbs").glob("*.py")}
    (listed,) = re.findall(r"## Not yet\n(.*?)\n## ", README, re.DOTALL)
    assert not {*re.findall(r"`(?:hgemm )?([a-z]+)`", listed)} & verbs


def test_the_names_in_the_example_are_the_emitted_ones() -> None:
    shipped = {path.parent.name for path in (ROOT / "emitted").glob("*/kernel.cu")}
    (shown,) = re.findall(r"^`(hgemm_\w+)`$", (ROOT / "docs" / "options.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert shown in shipped


VERBS = hgemm_command.list_commands(None)


@pytest.mark.parametrize("verb", VERBS)
def test_a_kernel_that_an_example_of_a_verb_names_is_shipped(verb: str) -> None:
    """One is named where a verb takes one, before and after `generate --catalog`."""
    shipped = [path.parent.name for path in (ROOT / "emitted").glob("*/kernel.cu")]
    for name, glob in re.findall(rf"hgemm {verb} '?(hgemm_\w+)(\*?)", hgemm_command.get_command(None, verb).help):
        meant = [symbol for symbol in shipped if symbol.startswith(name)]
        assert meant and (len(meant) == 1 or glob), name


def test_the_c_program_says_what_is_shown() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    sources = [ROOT / "templates" / "c" / "src" / "driver.c", ROOT / "examples" / "c" / "multiply.c"]
    shown = re.findall(r"\$ examples/c/multiply\n(.*)\n(.*)\n", text)
    assert shown
    assert all(line in source.read_text() for said in shown for line, source in zip(said, sources))
