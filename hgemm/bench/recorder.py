"""Results of a benchmark, or of tuning, as a session of a library's measurements."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hgemm.bench.measure import Stand
from hgemm.bench.work import Work
from hgemm.device import driver_cuda
from hgemm.kernel import Kernel
from hgemm.measured.session import Problem, Tested, Time
from hgemm.measured.writer import Writer

_CLOCKS = ("sm_mhz", "power_w", "temperature_c", "limited_by")
_STATES = ("power_limit_w", "sm_mhz_max", "temperature_c")


def problem_of(work: Work) -> Problem:
    """Return a problem as sessions have it."""
    return Problem(**{name: value for name, value in work.plain().items() if name != "group"})


def as_in_rounds(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the screened times of a result, as they would be in its rounds, where clocks are others than in short samples.

    They are scaled by what the finalists took in rounds over what they took when they were screened, the median of it:
    else those that were not timed in rounds would seem faster, or slower, than those that were.
    """
    screened, figures = result["screened_us"], result["figures"]
    both = [figures[name]["time_us"] / us for name, us in screened.items() if name in figures and us > 0]
    scale = statistics.median(both) if both else 1.0
    return {name: us * scale for name, us in screened.items()}


class Recorder:
    """A session that begins with its first result."""

    def __init__(
        self, library: Path, stand: Stand, program: str, kernels: Iterable[Kernel] = (), **header: Any
    ) -> None:
        self._library, self._stand, self._writer = library, stand, None
        self._kernels = {kernel.facts.symbol: kernel for kernel in kernels}
        self._header = {"program": program, **header}

    def know(self, kernels: Iterable[Kernel]) -> None:
        """Take note of variants that results may name."""
        self._kernels |= {kernel.facts.symbol: kernel for kernel in kernels}

    def add(self, result: Mapping[str, Any]) -> None:
        """Add a result of hgemm.bench.measure: of ours the finalists, the best first, then those that were only screened."""
        if not result.get("ours") or result["ours"] in result["refused"]:
            return
        figures = {name: one for name, one in result["figures"].items() if name in self._kernels}
        finalists = sorted(figures, key=lambda name: (name != result["ours"], figures[name]["time_us"]))
        paired = [
            (name, Time(0, figures[name]["time_us"], figures[name]["spread_us"], figures[name]["rounds"]))
            for name in finalists
            if name not in result["refused"]
        ]
        screened = {name: us for name, us in as_in_rounds(result).items() if name in self._kernels}
        others = [(name, Time(0, us)) for name, us in screened.items() if name not in figures and us > 0]
        telemetry = result.get("telemetry") or {}
        self._session().add(
            problem_of(Work(**result["work"])),
            result["state"],
            [(self._tested(name), time) for name, time in [*paired, *others] if name not in result["refused"]],
            decided=True,
            clocks={name: telemetry[name] for name in _CLOCKS if name in telemetry} or None,
            baseline=_baseline(result),
        )

    @property
    def session(self) -> str:
        """Return the session's name; nothing where no result was added."""
        return self._writer.name if self._writer else ""

    def close(self) -> None:
        if self._writer:
            self._writer.close()

    def _tested(self, name: str) -> Tested:
        record = self._kernels[name].record
        toolchain = {key: value for key, value in record.get("toolchain", {}).items() if key != "options"}
        return Tested(name, record["key"], toolchain)

    def _session(self) -> Writer:
        if self._writer is None:
            device, state = self._stand.device, self._stand.telemetry.state()
            header = {
                "device": device.name,
                "capability": device.capability[0] * 10 + device.capability[1],
                "sms": device.sms,
                "driver": state.get("driver") or f"CUDA {driver_cuda()}",
                "clocks": {name: state[name] for name in _STATES if name in state},
                "protocol": asdict(self._stand.protocol),
                "seed": self._stand.seed,
            }
            given = {name: value for name, value in self._header.items() if value is not None}
            self._writer = Writer(self._library, **header, **given)
        return self._writer


def _baseline(result: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the times of the baseline's first guess and of its best, where they were measured."""
    names: Sequence[str] = [role for role in ("first", "best") if result.get(role)]
    return {role: result["figures"][result[role]]["time_us"] for role in names} or None
