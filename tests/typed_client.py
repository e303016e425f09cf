"""A client of the package `hgemm`, as users write them. `make lint` checks its types strictly; nothing runs it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typing_extensions import assert_type

import hgemm


def shown(one: hgemm.Progress) -> None:
    print(one.done, one.total, one.symbol, one.error)


def kernels(folder: Path) -> list[hgemm.Kernel]:
    try:
        return hgemm.generate(arch="sm_90a", tile=["128x256x64", "128x128x64"], library=folder, progress=shown)
    except hgemm.GenerationError as error:
        raise SystemExit(f"{len(error.failed)} kernels failed") from error


def proofs(folder: Path) -> Iterator[str]:
    for one in hgemm.verify(library=folder):
        assert_type(one, hgemm.Verified)
        yield f"{one.symbol} {one.passed} {one.worst_ratio:.2f} {', '.join(one.cases)}"


def fastest(folder: Path) -> dict[str, float]:
    return {one.symbol: one.time_us for one in hgemm.tune("512x4096x4096", library=folder, dtype="bf16")}


def products(x: Any, w: Any, bias: Any) -> Any:
    y = hgemm.linear(x, w, bias, activation="gelu")
    return hgemm.matmul(y, w, out=x, alpha=0.5, beta=1.0, c=x)


def planned(folder: str, x: Any, w: Any, y: Any) -> int:
    library = hgemm.open(folder, build=True)
    assert_type(library, hgemm.Library)
    plan = library.plan(hgemm.Problem(m=512, n=2048, k=1024), hgemm.Kind(layout="tn", bias="row"))
    assert_type(plan, hgemm.MatmulPlan)
    plan(x, w, y)
    plan.bind(x, w, y)()
    for kernel in library:
        assert_type(kernel, hgemm.Kernel)
        kernel(x, w, y)
    assert_type(library["hgemm_sm90a_tn_"].symbol, str)
    return len(library)


def version() -> str:
    return hgemm.__version__
