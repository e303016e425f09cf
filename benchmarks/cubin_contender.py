"""Our own kernels as contenders: a variant of a library, loaded and launched through the driver."""

from __future__ import annotations

import ctypes
import json
from dataclasses import dataclass, field
from pathlib import Path

from contenders import Buffers, LaunchError, Problem


class ProblemStruct(ctypes.Structure):
    """The kernels' one parameter, as templates/hgemm/problem.cuh declares it."""

    _fields_ = (
        [(name, ctypes.c_uint64) for name in ("a", "b", "c", "d", "bias", "workspace")]
        + [(name, ctypes.c_int64) for name in ("lda", "ldb", "ldc", "ldd")]
        + [(f"batch_stride_{name}", ctypes.c_int64) for name in ("a", "b", "c", "d", "bias")]
        + [(name, ctypes.c_int32) for name in ("m", "n", "k", "batch")]
        + [(name, ctypes.c_float) for name in ("alpha", "beta")]
    )


WORKSPACE_ALIGN_BYTES = 256


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(frozen=True)
class Launch:
    """What record.json says of a launch: threads, shared memory, cluster and the grid's rule."""

    threads: int
    smem_bytes: int
    rule: str  # one_tile, split_k or persistent
    tile_m: int
    tile_n: int
    splits: int = 1
    cluster: tuple[int, int, int] = (1, 1, 1)
    ctas_per_sm: int = 1
    counter_bytes_per_tile: int = 0
    partial_bytes_per_tile: int = 0

    @classmethod
    def of(cls, launch: dict, resources: dict | None = None, traits: dict | None = None) -> Launch:
        grid = launch["grid"]
        workspace = (traits or {}).get("workspace") or {}
        return cls(
            threads=launch["threads"],
            smem_bytes=launch["smem_bytes"],
            cluster=tuple(launch.get("cluster") or (1, 1, 1)),
            rule=grid["rule"],
            tile_m=grid["tile_m"],
            tile_n=grid["tile_n"],
            splits=grid.get("splits") or 1,
            ctas_per_sm=(resources or {}).get("ctas_per_sm") or 1,
            counter_bytes_per_tile=workspace.get("counter_bytes_per_tile", 0),
            partial_bytes_per_tile=workspace.get("partial_bytes_per_tile", 0),
        )

    def tiles(self, m: int, n: int) -> int:
        return ceil_div(m, self.tile_m) * ceil_div(n, self.tile_n)

    def grid(self, m: int, n: int, batch: int, sms: int) -> tuple[int, int, int]:
        items = self.tiles(m, n) * batch
        if self.rule in ("one_tile", "split_k"):
            return items * self.splits, 1, 1
        if self.rule == "persistent":
            return min(items, sms * self.ctas_per_sm), 1, 1
        raise LaunchError(f"grid rule '{self.rule}' is not known")

    def workspace_bytes(self, m: int, n: int, batch: int) -> int:
        """Counters first, then the partial sums at the next multiple of 256 bytes."""
        tiles = self.tiles(m, n) * batch
        counters = ceil_div(self.counter_bytes_per_tile * tiles, WORKSPACE_ALIGN_BYTES) * WORKSPACE_ALIGN_BYTES
        return counters + self.partial_bytes_per_tile * tiles


@dataclass
class CubinContender:
    """One of our kernels from its cubin, or from PTX that the driver compiles."""

    name: str
    code: bytes
    symbol: str
    launch_rule: Launch
    acc: str = "f32"
    facts: dict = field(default_factory=dict)  # carried into the report: spec, registers, ...

    def __post_init__(self) -> None:
        self._function = self._workspace = None
        self._grid = (0, 0, 0)

    @classmethod
    def from_folder(cls, folder: Path, kind: str = "cubin") -> CubinContender:
        """Read the variant of one folder of a library; `kind` is cubin or ptx."""
        record = json.loads((folder / "record.json").read_text())
        symbol, arch = record["symbol"], record["arch"]
        name = symbol if arch.replace("_", "") in symbol else f"{symbol}@{arch}"
        name += "" if kind == "cubin" else f".{kind}"
        return cls(
            name,
            (folder / f"kernel.{kind}").read_bytes(),
            symbol,
            Launch.of(record["launch"], record.get("resources"), record.get("traits")),
            acc=record["spec"]["acc"],
            facts=dict(arch=arch, kind=kind, spec=record["spec"], resources=record.get("resources")),
        )

    def prepare(self, problem: Problem) -> None:
        import torch
        from cuda.bindings import driver

        torch.cuda.current_stream().synchronize()  # makes the primary context current, into which the module is loaded
        if self._function is None:
            image = self.code if self.code[:4] == b"\x7fELF" else self.code.rstrip(b"\0") + b"\0"
            self._module = self._ok(driver.cuModuleLoadData(image))
            self._function = self._ok(driver.cuModuleGetFunction(self._module, self.symbol.encode()))
            attribute = (
                driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            )  # needed above 48 KiB
            self._ok(driver.cuFuncSetAttribute(self._function, attribute, self.launch_rule.smem_bytes))
        sms = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
        self._grid = self.launch_rule.grid(problem.m, problem.n, 1, sms)
        workspace_bytes = self.launch_rule.workspace_bytes(problem.m, problem.n, 1)
        self._workspace = torch.zeros(workspace_bytes, dtype=torch.uint8, device="cuda") if workspace_bytes else None

    def launch(self, stream: int, buffers: Buffers) -> None:
        from cuda.bindings import driver

        parameter = self.parameter(buffers)
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(parameter))
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = self._grid
        config.blockDimX, config.blockDimY, config.blockDimZ = self.launch_rule.threads, 1, 1
        config.sharedMemBytes = self.launch_rule.smem_bytes
        config.hStream = driver.CUstream(stream)
        if self.launch_rule.cluster != (1, 1, 1):
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            cluster = attribute.value.clusterDim
            cluster.x, cluster.y, cluster.z = self.launch_rule.cluster
            config.attrs, config.numAttrs = [attribute], 1
        self._ok(driver.cuLaunchKernelEx(config, self._function, ctypes.addressof(pointers), 0))

    def parameter(self, buffers: Buffers) -> ProblemStruct:
        p = buffers.problem
        workspace = self._workspace.data_ptr() if self._workspace is not None else 0
        return ProblemStruct(
            a=buffers.a.data_ptr(),
            b=buffers.b.data_ptr(),
            d=buffers.d.data_ptr(),
            workspace=workspace,
            lda=p.k,
            ldb=p.k,
            ldc=p.n,
            ldd=p.n,
            m=p.m,
            n=p.n,
            k=p.k,
            batch=1,
            alpha=1.0,
            beta=0.0,
        )

    def _ok(self, result: tuple):
        status, *values = result
        if int(status):
            raise LaunchError(f"{self.name}: {status.name}")
        return values[0] if values else None


def library_contenders(library: Path, artifact: str, capability: tuple[int, int]) -> list[CubinContender]:
    """Read every variant of a library for tn, f16 in, f16 out, no bias or activation; cubin, ptx, both or auto."""
    contenders = []
    for path in sorted(library.glob("*/record.json")):
        record = json.loads(path.read_text())
        if not comparable(record["spec"]):
            continue
        best = "cubin" if cubin_runs(record["arch"], capability) else "ptx"
        kinds = {"auto": [best], "both": list(dict.fromkeys([best, "ptx"]))}.get(artifact, [artifact])
        contenders += [CubinContender.from_folder(path.parent, kind) for kind in kinds]
    return contenders


def comparable(spec: dict) -> bool:
    wanted = dict(layout="tn", dtype_a="f16", dtype_b="f16", dtype_d="f16", bias="none", activation="none")
    return all(spec.get(name, value) == value for name, value in wanted.items())


def cubin_runs(arch: str, capability: tuple[int, int]) -> bool:
    """Machine code runs on its own major version, from its minor on; that of an `a` architecture only on itself."""
    digits = arch.removeprefix("sm_").rstrip("af")
    major, minor = int(digits[:-1]), int(digits[-1])
    exact = arch.endswith("a")
    return major == capability[0] and (minor == capability[1] if exact else minor <= capability[1])
