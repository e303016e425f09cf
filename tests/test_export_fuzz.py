"""A million random problems for hgemm_run, under the address and undefined-behaviour sanitizers, without a GPU."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from exports import fake_driver, need_compiler

PROBLEMS = 1_000_000
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
REACHED = (0, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
"""The statuses that a problem can have, each of which the draw must meet."""


@pytest.fixture(scope="module")
def fuzzer(paper_export: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    folder = tmp_path_factory.mktemp("fuzz")
    sources = sorted((paper_export / "src").glob("*.c"))
    command = [
        *(
            need_compiler(),
            "-std=gnu11",
            "-O1",
            *SANITIZERS,
            f"-I{paper_export / 'include'}",
            f"-I{paper_export / 'src'}",
        ),
        f'-DHGEMM_IMAGES="{paper_export / "src" / "images.bin"}"',
        *map(str, [Path(__file__).parent / "fuzz_export.c", *sources]),
        *("-o", str(folder / "fuzz"), "-ldl", "-lpthread"),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if "cannot find -lasan" in done.stderr or "libasan" in done.stderr:
        pytest.skip("this C compiler has no sanitizers")
    assert done.returncode == 0, done.stderr
    env = {**os.environ, "LD_LIBRARY_PATH": str(fake_driver(folder / "driver")), "FAKE_LAZY": "1"}
    return folder / "fuzz", env


def test_a_million_problems_are_launched_or_refused_with_words(fuzzer: tuple[Path, dict[str, str]]) -> None:
    program, env = fuzzer
    done = subprocess.run([program, str(PROBLEMS), "1"], capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    answers = {int(line.split()[0]): int(line.split()[1]) for line in done.stdout.splitlines()}
    assert sum(answers.values()) == PROBLEMS
    assert all(answers[status] for status in REACHED), answers
    assert answers[0] > PROBLEMS // 10, "the draw is too wild"
