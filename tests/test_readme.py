"""README and docs: their commands are accepted, and their links resolve."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from conftest import ROOT

from generator.cli.main import generate_command, hgemm_command
from hgemm.errors import RequestError

TOP = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "THIRD_PARTY.md")]
PAGES = TOP + sorted((ROOT / "docs").rglob("*.md"))
IDS = [str(page.relative_to(ROOT)) for page in PAGES]
every_page = pytest.mark.parametrize("page", PAGES, ids=IDS)


@dataclass(frozen=True)
class Shown:
    """A command that a page shows, and the lines shown as its output."""

    words: tuple[str, ...]
    output: str = ""

    @property
    def command(self) -> click.Command:
        if self.words[0] == "generate":
            return generate_command
        found = hgemm_command.get_command(click.Context(hgemm_command), self.words[1])
        assert found, f"hgemm has no verb {self.words[1]}"
        return found

    @property
    def arguments(self) -> list[str]:
        return list(self.words[1:] if self.words[0] == "generate" else self.words[2:])


def shown_in_blocks(text: str) -> list[Shown]:
    """Return the commands of the console blocks of a page, with their output."""
    blocks = "".join(re.findall(r"```console\n(.*?)```", text, re.DOTALL))
    return _ours(re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", blocks, re.MULTILINE))


def shown_in_text(text: str) -> list[Shown]:
    """Return the commands of indented blocks."""
    return _ours([(line, "") for line in re.findall(r"^    ((?:generate|hgemm) .*)", text, re.MULTILINE)])


def named_in_text(text: str) -> list[Shown]:
    """Return the commands between backticks, of which only the verb and the options need be words of ours."""
    return _ours([(line, "") for line in re.findall(r"`((?:generate|hgemm) (?!VERB)[^`]*)`", text)])


def _ours(found: list[tuple[str, str]]) -> list[Shown]:
    commands = [Shown(tuple(shlex.split(line, comments=True)), output) for line, output in found]
    return [shown for shown in commands if len(shown.words) > 1 and shown.words[0] in ("generate", "hgemm")]


@every_page
def test_shown_commands_exist_with_their_options(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for shown in shown_in_blocks(text) + shown_in_text(text):
        shown.command.make_parser(click.Context(shown.command)).parse_args(shown.arguments)
    for shown in named_in_text(text):
        parameters = shown.command.get_params(click.Context(shown.command))
        taken = {option for parameter in parameters for option in (*parameter.opts, *parameter.secondary_opts)}
        assert {word for word in shown.arguments if word.startswith("--")} <= taken | {"--help"}, shown.words


@every_page
def test_shown_requests_are_legal_unless_an_error_is_shown(page: Path, tmp_path: Path) -> None:
    for shown in shown_in_blocks(page.read_text(encoding="utf-8")):
        if shown.words[0] == "generate" and "--help" not in shown.words:
            mode = [] if {"--explain", "--dry-run"} & set(shown.words) else ["--dry-run"]
            done = CliRunner().invoke(generate_command, [*shown.arguments, *mode, "--library", str(tmp_path)])
            illegal = isinstance(done.exception, RequestError)
            assert illegal == ("error:" in shown.output) and (illegal or not done.exit_code), (shown.words, done)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@every_page
def test_links_resolve(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for path, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", text):
        target = page.parent / path if path else page
        assert target.exists(), path
        generated = "<!-- generated: " in target.read_text(encoding="utf-8") if anchor else False
        assert not anchor or generated or anchor in anchors(target), f"{path}#{anchor}"


@every_page
def test_named_files_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    places = "generator|hgemm|templates|tests|benchmarks|docs|examples|emitted"
    paths = re.findall(rf"`((?:{places})/[\w./-]*)`|python ((?:docs|benchmarks|tests)/[\w./]+\.py)", text)
    modules = re.findall(r"python -m ((?:generator|benchmarks)\.[\w.]*\w)", text)
    named = {*map("".join, paths), *(module.replace(".", "/") + ".py" for module in modules)}
    packages = {name for name in named if (ROOT / name.removesuffix(".py")).is_dir()}
    assert not [name for name in named - packages if "NAME" not in name and not (ROOT / name).exists()]


@every_page
def test_targets_of_make_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = re.findall(r"(?:^    |^\$ |`)make ([a-z][a-z-]*)", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(named) <= targets


def test_the_readme_names_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make generate" in text and "make test" in text


SCRIPTS = [path for folder in ("clients", "sanitize") for path in sorted((ROOT / "examples" / folder).glob("*.py"))]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_an_example_without_arguments_names_what_it_needs(script: Path, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True)
    assert "Traceback" not in done.stderr and (done.returncode == 0) == (not done.stderr)
    assert not any(tmp_path.iterdir())
