"""The 144 bytes that a kernel takes, and every way of getting a problem wrong."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest
from fake_driver import unpack
from simulated import record

from hgemm.errors import LibraryError, ProblemError
from hgemm.launch import check
from hgemm.launch_traits import LaunchTraits
from hgemm.problem import PROBLEM_BYTES, Problem

ROOT = Path(__file__).resolve().parent.parent
PLAIN = LaunchTraits.of(record())
GOOD = Problem(
    *(100, 60, 40, 2),
    a=0x1000,
    lda=40,
    batch_stride_a=4000,
    b=0x8000,
    ldb=48,
    batch_stride_b=2880,
    c=0x20000,
    ldc=64,
    batch_stride_c=6400,
    d=0x40000,
    ldd=64,
    batch_stride_d=6400,
    beta=0.5,
)


def test_a_problem_packs_as_the_header_declares_it() -> None:
    numbers = {field.name: at + 1 for at, field in enumerate(fields(Problem))}
    problem = Problem(**{**numbers, "alpha": 0.5, "beta": -2.0})
    packed = problem.pack()
    assert len(packed) == PROBLEM_BYTES == 144 and unpack(packed) == problem
    text = (ROOT / "templates/common/problem.cuh").read_text().partition("struct Problem {")[2].partition("};")[0]
    at = 0
    for line in (line.partition("//")[0].strip() for line in text.splitlines()):
        match = re.match(r"(void const\*|void\*|int64_t|int32_t|float) (.+);", line)
        for name in match[2].split(", ") if match else ():
            code = {"int32_t": "<i", "float": "<f"}.get(match[1], "<q")
            assert struct.unpack_from(code, packed, at)[0] == getattr(problem, name), name
            at += struct.calcsize(code)
    assert at == PROBLEM_BYTES


def test_a_good_problem_passes() -> None:
    check(GOOD, PLAIN)
    check(replace(GOOD, c=GOOD.d), PLAIN)  # in place
    check(replace(GOOD, beta=0.0, c=0), PLAIN)
    check(replace(GOOD, batch_stride_a=0, batch_stride_c=0), PLAIN)
    check(replace(GOOD, m=2**31 - 1024, batch=1, d=1 << 50), PLAIN)
    # One matrix of 256 columns: A in the first 40, D in the last 60 of it.
    check(replace(GOOD, a=0x1000, lda=256, d=0x1000 + 2 * 192, ldd=256, batch=1, b=1 << 40, c=1 << 41), PLAIN)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"m": 0}, "m is 0: use 1 to 2147482624"),
        ({"n": -3, "k": 2**31}, "n is -3.*; k is 2147483648"),
        ({"batch": 0}, "batch is 0"),
        ({"batch": 2**31 - 1023}, "batch is 2147482625: use 1 to 2147482624"),
        ({"m": 2**30, "n": 2**20, "batch": 1}, "CTA tiles exceed the 2147483647 of a launch"),
        ({"a": 0}, "A has no pointer"),
        ({"a": 0x1008}, "A begins at an address that is not a multiple of 16 B"),
        ({"lda": 39}, "A's leading dimension 39 is less than its 40 contiguous elements"),
        ({"ldb": 41}, "B's leading dimension 41 is not a multiple of 8: use 48"),
        ({"batch_stride_a": 4004}, "A's batch stride 4004 .* not a multiple of 8"),
        ({"batch_stride_a": -4000}, "A's batch stride -4000"),
        ({"lda": 2**61}, "A spans"),
        ({"c": 0}, "C has no pointer"),
        ({"alpha": 1e39}, "alpha 1e[+]39 overflows f32"),
        ({"bias": 0x90000}, "bias is given, but the variant adds none"),
        ({"batch_stride_d": 0}, "D's batches overlap"),
        ({"batch_stride_d": 3200}, "D's batches overlap"),
        ({"d": 0x1000}, "D overlaps A"),
        ({"d": 0x8000 + 16}, "D overlaps B"),
        ({"c": 0x40000 + 16}, "D overlaps C"),
        ({"a": 0x1000, "lda": 256, "d": 0x1000 + 64, "ldd": 256, "batch": 1, "b": 1 << 40}, "D overlaps A"),
    ],
)
def test_a_bad_problem_is_refused_in_one_line(changes: dict, message: str) -> None:
    with pytest.raises(ProblemError, match=message) as caught:
        check(replace(GOOD, **changes), PLAIN)
    assert str(caught.value).startswith("hgemm_test: ") and str(caught.value).isprintable()
    assert caught.value.exit_code == 2 and isinstance(caught.value, ValueError)


def test_side_by_side_batches_do_not_overlap() -> None:
    check(replace(GOOD, ldd=128, batch_stride_d=64), PLAIN)


def test_what_a_variant_lacks_is_named() -> None:
    with pytest.raises(ProblemError, match="does not add C: .*--beta on"):
        check(GOOD, LaunchTraits.of(record(beta=False)))
    biased = LaunchTraits.of(record(bias="row"))
    with pytest.raises(ProblemError, match="bias has no pointer"):
        check(GOOD, biased)
    check(replace(GOOD, bias=0x90002), biased)
    with pytest.raises(ProblemError, match="bias begins"):
        check(replace(GOOD, bias=0x90001), biased)


def test_a_split_variant_needs_its_workspace() -> None:
    split = LaunchTraits.of(record("split_k", splits=4))
    tiles = 4 * 2 * 2
    needed = 256 + tiles * 4 * 32 * 48 * 4
    for changes, size, message in (
        ({}, None, f"workspace is missing: {needed} B"),
        ({"workspace": 0x1000000}, needed - 1, f"has {needed - 1} B: {needed} B"),
        ({"workspace": 0x1000008}, needed, "not a multiple of 16 B"),
        ({"workspace": 0x3FF00}, needed, "D overlaps the workspace"),
    ):
        with pytest.raises(ProblemError, match=message):
            check(replace(GOOD, **changes), split, size)
    check(replace(GOOD, workspace=0x1000000), split, needed)


def test_alignments_are_those_of_the_variant() -> None:
    loose = LaunchTraits.of(record(align=(1, 2, 4)))
    check(replace(GOOD, a=0x1002, lda=41, ldb=42, b=0x8004, ldc=68, ldd=68, d=0x40008, batch_stride_d=6800), loose)
    with pytest.raises(ProblemError, match="B's leading dimension 41 is not a multiple of 2"):
        check(replace(GOOD, ldb=41), loose)
    with pytest.raises(ProblemError, match="C's leading dimension 62 is not a multiple of 4"):
        check(replace(GOOD, ldc=62), loose)


def test_layouts_say_which_extent_is_contiguous() -> None:
    nt = LaunchTraits.of(record(layout="nt"))
    check(replace(GOOD, lda=104, ldb=64), nt)
    with pytest.raises(ProblemError, match="A's leading dimension 40 is less than its 100"):
        check(replace(GOOD, ldb=64), nt)


def test_a_record_that_lacks_something_is_refused() -> None:
    bare = record()
    with pytest.raises(LibraryError, match="has no 'traits'"):
        LaunchTraits.of({name: bare[name] for name in bare if name != "traits"})
    with pytest.raises(LibraryError, match="grid rule 'tiles' is unknown"):
        LaunchTraits.of(record("tiles"))


def test_importing_hgemm_loads_nothing_slow() -> None:
    code = "import sys, hgemm; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert not {"numpy", "cuda", "generator", "click", "torch"} & set(found.split())
