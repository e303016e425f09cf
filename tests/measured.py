"""Sessions of measurements to test with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from hgemm.measured import KernelTime, MeasuredKernel, MeasuredProblem, Session, SessionWriter, read_session
from hgemm.problem import LaunchOptions

HEADER = {
    "program": "tune",
    "device": "NVIDIA H200",
    "capability": 90,
    "sms": 132,
    "driver": "580.159.04",
    "clocks": {"sm_mhz_max": 1980.0, "power_limit_w": 700.0},
}
KEY = "0" * 64


def problem(
    m: int, n: int, k: int, batch: int = 1, layout: str = "tn", dtype: str = "f16", acc: str = "f32"
) -> MeasuredProblem:
    return MeasuredProblem(m, n, k, batch, layout, dtype, dtype, acc, dtype)


def times(
    times_us: Mapping[str, float],
    keys: Mapping[str, str] | None = None,
    options: Mapping[str, LaunchOptions] | None = None,
) -> list[tuple[MeasuredKernel, KernelTime]]:
    """Return the times of kernels by symbol, in the order given, as a writer takes them."""
    return [
        (
            MeasuredKernel(symbol, (keys or {}).get(symbol, KEY), {"nvrtc": "13.0"}),
            KernelTime(0, time_us, 0.1, 15, (options or {}).get(symbol)),
        )
        for symbol, time_us in times_us.items()
    ]


def write(
    library: Path,
    results: Sequence[tuple[MeasuredProblem, Mapping[str, float]]],
    keys: Mapping[str, str] | None = None,
    state: str = "steady",
    options: Sequence[Mapping[str, LaunchOptions]] = (),
    **header: object,
) -> Session:
    """Write a session of these problems and times, and return it as it is read. `options` are those of the launches, by result."""
    writer = SessionWriter(library, **{**HEADER, **header})
    for at, (of, times_us) in enumerate(results):
        writer.add(of, state, times(times_us, keys, options[at] if options else None), decided=True)
    writer.close()
    return read_session(writer.path)
