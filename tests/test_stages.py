"""The way of the data: no stage imports a later one, only the pipeline joins them, none reads the environment."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from conftest import ROOT

WAY = (
    "errors values arch spec layouts families.plan families.mma_sync.plan families.sm90.tensor_maps "
    "families.mma_sync_tma.plan families.sm90.plan plan families.ways_out families.rules families.defaults "
    "families.mma_sync.ways_out families.mma_sync.cute_rules families.mma_sync.dsl_rules families.mma_sync.rules "
    "families.mma_sync.defaults "
    "families.mma_sync_tma.ways_out families.mma_sync_tma.rules families.mma_sync_tma.defaults "
    "families.sm90.ways_out families.sm90.cute_rules families.sm90.rules families.sm90.defaults defaults rules families.naming "
    "families.mma_sync.naming families.mma_sync_tma.naming families.sm90.naming naming families.emit families.cute_text "
    "families.mma_sync.emit families.mma_sync.cute_emit families.mma_sync.dsl_emit families.mma_sync_tma.emit "
    "families.sm90.emit families.sm90.cute_emit emit toolchain dsl.parameters dsl.translate "
    "binary.ptxas_log compile binary.elf "
    "binary.occupancy binary.sass binary.inspect families.mma_sync.expectation families.sm90.expectation "
    "families.mma_sync_tma.expectation expectation "
    "register build store.disk store.whole store.variants "
    "store.library failures workers.dispatch pipeline commands.progress cli"
).split()
"""The stages and what they stand on, in the order in which a spec passes them."""


def path_of(stage: str) -> Path:
    return ROOT / "generator" / f"{stage.replace('.', '/')}.py"


def imports(path: Path) -> set[str]:
    """Return the modules that a file imports, anywhere in it."""
    nodes = [*ast.walk(ast.parse(path.read_text()))]
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return plain | {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}


@pytest.mark.parametrize("stage", WAY)
def test_no_stage_imports_a_later_one(stage: str) -> None:
    found = {name.partition(".")[2] for name in imports(path_of(stage)) if name.startswith("generator.")}
    later = found & {*WAY[WAY.index(stage) + 1 :]}
    assert not later


@pytest.mark.parametrize(
    ("joined", "by"),
    [
        ({"generator.build.compile", "generator.expectation", "generator.build.inspect"}, "build"),
        ({"generator.build.pipeline", "generator.store.library", "generator.build.workers"}, "pipeline"),
    ],
)
def test_only_one_module_joins(joined: set[str], by: str) -> None:
    """Compiling and inspecting are joined in `build`, building and publishing in `pipeline`, and nowhere else."""
    assert [path.stem for path in (ROOT / "generator").rglob("*.py") if joined <= imports(path)] == [by]


def test_the_run_time_package_does_not_need_the_generator() -> None:
    for path in (ROOT / "hgemm").rglob("*.py"):
        assert not [name for name in imports(path) if name.split(".")[0] == "generator"], path


def test_no_stage_reads_the_environment() -> None:
    for stage in WAY:
        text = (path_of(stage)).read_text()
        assert "os.environ" not in text and "getenv" not in text, stage
