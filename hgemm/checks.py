"""Everything that may be wrong with a problem, before it is launched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hgemm.dtypes import DTYPES
from hgemm.errors import ProblemError
from hgemm.facts import Facts
from hgemm.launch import ctas, workspace_bytes
from hgemm.matrices import Matrix, matrices, overlaps
from hgemm.problem import MAX_EXTENT, Problem
from hgemm.tensor_maps import map_complaints

MAX_CTAS = 2**31 - 1
"""Largest grid.x. Source: CUDA Programming Guide 13.x, section 5.1.3, table 30."""
WORKSPACE_ALIGN_BYTES = 16


def check(problem: Problem, facts: Facts, workspace_size: int | None = None) -> None:
    """Refuse a problem that the variant does not compute; `workspace_size` is what the workspace holds, if known.

    Raises: ProblemError with everything that is wrong, in one line.
    """
    wrong = list(_size_complaints(problem, facts))
    if not wrong:
        places = {name: place for name, place in matrices(problem, facts).items() if problem.k or name not in "AB"}
        wrong = [told for matrix in places.values() for told in matrix.complaints()]
        misplaced = list(map_complaints(facts, places))
        wrong = wrong or misplaced
        wrong += ["variants of the mma.sync family (arch sm_90, sm_80) take any operands"] if misplaced else []
        wrong += _scalar_complaints(problem, facts)
        wrong += _workspace_complaints(problem, facts, workspace_size, places)
        wrong += [] if wrong else overlaps(places)
    if wrong:
        raise ProblemError(f"{facts.symbol}: {'; '.join(wrong)}")


def _size_complaints(problem: Problem, facts: Facts) -> Iterator[str]:
    for name in ("m", "n", "k", "batch"):
        value = getattr(problem, name)
        least = 0 if name == "k" and not facts.tensor_maps else 1
        if not least <= value <= MAX_EXTENT:
            yield f"{name} is {value}: it may be {least} to {MAX_EXTENT}"
    count = ctas(facts, problem.m, problem.n, problem.batch)
    if count > MAX_CTAS:
        yield f"{count} CTA tiles are more than a launch's {MAX_CTAS}: use a larger tile, or fewer batches a launch"


def _scalar_complaints(problem: Problem, facts: Facts) -> Iterator[str]:
    for name in ("alpha", "beta"):
        if DTYPES["f32"].largest < abs(getattr(problem, name)) < float("inf"):
            yield f"{name} {getattr(problem, name)} is beyond f32"
    if problem.beta != 0 and not facts.beta:
        yield f"beta is {problem.beta}, and the variant does not add C: use one generated with beta on"
    if problem.bias and facts.bias == "none":
        yield "bias is given, and the variant adds none: use one generated with bias row or column"


def _workspace_complaints(
    problem: Problem, facts: Facts, size: int | None, places: Mapping[str, Matrix]
) -> Iterator[str]:
    needed = workspace_bytes(facts, problem.m, problem.n, problem.batch)
    if needed and not problem.workspace:
        yield f"a workspace of {needed} B is missing: bring one"
    elif needed and size is not None and size < needed:
        yield f"the workspace has {size} B of {needed} B"
    elif needed and problem.workspace % WORKSPACE_ALIGN_BYTES:
        yield f"the workspace begins at an address that is not a multiple of {WORKSPACE_ALIGN_BYTES} B"
    elif needed:
        for name, place in places.items():
            if problem.workspace < place.end and place.pointer < problem.workspace + needed:
                yield f"{name} overlaps the workspace"
