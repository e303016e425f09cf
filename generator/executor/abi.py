"""The C interface of an executable variant, templates/executor/abi.h, and what it reports."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hgemm.errors import DeviceError

ABI_VERSION = 1
TIMINGS = ("late", "early", "any_time")
"""When asynchronous copies land, as enum hgemm_timing counts them."""
ORDERS = ("round_robin", "ahead_low", "ahead_high", "any_order")
"""Which warp goes next, as enum hgemm_order counts them."""
READABLE, WRITABLE, WRITE_ONCE, INITIALISED, PADDING_READABLE, MATRIX_READABLE = 1, 2, 4, 8, 16, 32
TENSOR_MAP_MAGIC = 0x70616D74
_EMULATED, _TOO_LONG = 0, 2
_REPORT_BYTES = 1 << 20


class _Region(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        *((name, ctypes.c_uint64) for name in ("rows", "row_bytes", "pitch_bytes", "batches", "batch_stride_bytes")),
        ("element_bytes", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
    ]


class TensorMap(ctypes.Structure):
    """struct hgemm_tensor_map: what the 128 bytes of a CUtensorMap are to the host."""

    _fields_ = [
        ("base", ctypes.c_uint64),
        ("extent", ctypes.c_uint64 * 5),
        ("stride_bytes", ctypes.c_uint64 * 4),
        ("box", ctypes.c_uint32 * 5),
        *((name, ctypes.c_uint32) for name in ("rank", "element_bytes", "swizzle", "magic")),
        ("reserved", ctypes.c_uint32 * 3),
    ]


class _Emulation(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint32),
        ("grid", ctypes.c_uint32 * 3),
        ("cluster", ctypes.c_uint32 * 3),
        *((n, ctypes.c_uint32) for n in ("threads", "shared_bytes", "registers", "resident_ctas", "timing", "order")),
        ("seed", ctypes.c_uint64),
        ("step_limit", ctypes.c_uint64),
        ("parameter_count", ctypes.c_uint32),
        ("region_count", ctypes.c_uint32),
        ("parameters", ctypes.POINTER(ctypes.c_void_p)),
        ("parameter_bytes", ctypes.POINTER(ctypes.c_uint64)),
        ("regions", ctypes.POINTER(_Region)),
    ]


@dataclass(frozen=True)
class Region:
    """Global memory that belongs to one object; see struct hgemm_region. Units: bytes."""

    name: str
    base: int
    rows: int
    row_bytes: int
    pitch_bytes: int
    batches: int
    batch_stride_bytes: int
    element_bytes: int
    flags: int

    def structure(self) -> _Region:
        values = [getattr(self, name) for name, _ in _Region._fields_[1:]]
        return _Region(self.name.encode(), *values)


@dataclass(frozen=True)
class Adversary:
    """How whatever the program leaves open is decided in one launch; the same adversary replays the same run."""

    timing: str
    order: str
    seed: int

    def __str__(self) -> str:
        return f"{self.timing}, {self.order}, seed {self.seed}"


@dataclass(frozen=True)
class Launch:
    """One launch: CTAs along x, their threads and shared memory, what is passed by value, and the memory it may touch."""

    grid_x: int
    cluster_ctas: int
    threads: int
    smem_bytes: int
    parameters: tuple[bytes, ...]
    regions: tuple[Region, ...]
    resident_ctas: int
    step_limit: int


@dataclass(frozen=True)
class Finding:
    """Something that a kernel must not do: its kind as templates/executor/abi.h lists them, and the first place."""

    kind: str
    count: int
    message: str
    file: str
    line: int

    def __str__(self) -> str:
        times = f" ({self.count} times)" if self.count > 1 else ""
        return f"{self.kind} at {self.file}:{self.line}: {self.message}{times}"


@dataclass(frozen=True)
class Site:
    """What one source line cost, summed over all its warp instructions."""

    file: str
    line: int
    kind: str
    space: str
    requests: int
    wavefronts: int
    ideal_wavefronts: int
    sectors: int
    ideal_sectors: int
    bytes: int


@dataclass(frozen=True)
class Report:
    """What one launch did: nothing found means that it is clean."""

    findings: tuple[Finding, ...]
    sites: tuple[Site, ...]
    counters: dict[str, int]


class Executable:
    """A variant that runs on the CPU: a shared object that was built for it."""

    def __init__(self, path: Path) -> None:
        self._emulate = ctypes.CDLL(str(path)).hgemm_emulate
        self._emulate.argtypes = [ctypes.POINTER(_Emulation), ctypes.c_char_p, ctypes.c_size_t]

    def run(self, launch: Launch, adversary: Adversary) -> Report:
        """Run one launch to its end, or to what stops it. Raises: DeviceError where the executor refuses it."""
        blocks = [ctypes.create_string_buffer(value, len(value)) for value in launch.parameters]
        addresses = (ctypes.c_void_p * len(blocks))(*map(ctypes.addressof, blocks))
        sizes = (ctypes.c_uint64 * len(blocks))(*map(len, launch.parameters))
        regions = (_Region * len(launch.regions))(*(region.structure() for region in launch.regions))
        request = _Emulation(
            version=ABI_VERSION,
            grid=(launch.grid_x, 1, 1),
            cluster=(launch.cluster_ctas, 1, 1),
            threads=launch.threads,
            shared_bytes=launch.smem_bytes,
            resident_ctas=launch.resident_ctas,
            timing=TIMINGS.index(adversary.timing),
            order=ORDERS.index(adversary.order),
            seed=adversary.seed,
            step_limit=launch.step_limit,
            parameter_count=len(blocks),
            region_count=len(regions),
            parameters=ctypes.cast(addresses, ctypes.POINTER(ctypes.c_void_p)),
            parameter_bytes=ctypes.cast(sizes, ctypes.POINTER(ctypes.c_uint64)),
            regions=regions,
        )
        text = ctypes.create_string_buffer(_REPORT_BYTES)
        status = self._emulate(ctypes.byref(request), text, _REPORT_BYTES)
        if status == _TOO_LONG:
            raise DeviceError(f"the executor's report is longer than {_REPORT_BYTES} B")
        document = json.loads(text.value.decode(errors="replace"))
        if status != _EMULATED:
            raise DeviceError(f"the executor refuses the launch: {document.get('error', f'status {status}')}")
        return report_of(document)


def report_of(document: dict) -> Report:
    """Read a report's JSON document."""
    return Report(
        tuple(Finding(**finding) for finding in document["findings"]),
        tuple(Site(**site) for site in document["sites"]),
        dict(document["counters"]),
    )


def added(reports: Sequence[Report]) -> dict[str, int]:
    """Return the counters of several launches together."""
    total: dict[str, int] = {}
    for report in reports:
        for name, count in report.counters.items():
            total[name] = total.get(name, 0) + count
    return total
