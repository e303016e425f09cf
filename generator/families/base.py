"""A kernel family: its plan, its rules, its forms, and the `Family` object that each folder of families/ exports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from generator.arch import ARCHS, Arch
from generator.spec import DTYPE_BYTES, Request, Spec, symbol_of
from hgemm.accumulation import order_id
from hgemm.gpus import max_stream_k_ctas
from hgemm.problem import LAUNCH

# ==== The order of a sum ====

IN_ORDER = "k in order"


def last_first(k_tile: int) -> str:
    """Return the order of kernels that multiply the last k-tile, which may be ragged, before the others."""
    return f"last k-tile of {k_tile} first, then k in order"


@dataclass(frozen=True)
class AccumulationOrder:
    """The order in which a kernel adds the products of an element, up to the sum that alpha multiplies.

    Kernels with the same text give the same bits of this sum on the same GPU. `fixed` says whether every launch has this order,
    for any m and n. If not, it is the order of launches that do not share the k of a tile.
    """

    text: str
    fixed: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the record's `accumulation_order`."""
        return {"id": order_id(self.text), "text": self.text, "fixed": self.fixed}


# ==== Plan ====


@dataclass(frozen=True)
class Plan(ABC):
    """A spec and the numbers that follow from it. The emitted kernel asserts them; `planner.plan_of` makes the plan of a spec.

    Units: bytes where the name says so; registers are per thread.
    """

    spec: Spec

    def replace(self, **values: Any) -> Plan:
        """Return the plan of the spec with other values in some fields.

        Fixed fields follow the change, unless the spec had already set them to something else.
        """
        changed = type(self)(self.spec.replace(**values))
        others = {
            name: value
            for name, value in changed.fixed_fields.items()
            if value != getattr(changed.spec, name) and name not in values
        }
        if not others:
            return changed
        before = self.fixed_fields
        following = {name: others[name] for name in others.keys() & before if before[name] == getattr(self.spec, name)}
        return type(self)(changed.spec.replace(**following)) if following else changed

    def stray_fields(self) -> dict[str, Any]:
        """Return the fixed fields that the spec sets to another value, with the values that they must have."""
        return {name: value for name, value in self.fixed_fields.items() if getattr(self.spec, name) != value}

    # ---- What each family computes ----------------------------------------------------------------------------------

    @property
    @abstractmethod
    def instruction(self) -> str:
        """The tensor instruction's name in PTX."""

    @property
    @abstractmethod
    def fixed_fields(self) -> dict[str, Any]:
        """The fields that have one legal value in this family, with that value. Other fields may decide it."""

    @property
    @abstractmethod
    def threads(self) -> int:
        """Threads of a CTA."""

    @property
    @abstractmethod
    def stage_bytes(self) -> int:
        """Bytes of one stage, A and B together."""

    @property
    @abstractmethod
    def smem_bytes(self) -> int:
        """Shared memory of a CTA."""

    @property
    @abstractmethod
    def accumulator_registers(self) -> int:
        """Registers that hold a thread's accumulators."""

    @property
    @abstractmethod
    def needed_registers(self) -> int:
        """Registers that a thread will need, estimated."""

    @property
    def max_registers(self) -> int:
        """Registers that a thread may have."""
        return self.register_limit(self.threads)

    @property
    def launch_registers(self) -> int:
        """Registers that a thread is launched with, estimated."""
        return min(self.needed_registers, self.max_registers)

    @property
    def rebalances_registers(self) -> bool:
        """Whether threads give registers to other threads."""
        return False

    @property
    def whole_program(self) -> bool:
        """Whether ptxas must compile a whole program: it ignores setmaxnreg otherwise."""
        return self.rebalances_registers

    @property
    @abstractmethod
    def mma_per_k_tile(self) -> int:
        """Tensor instructions that one warp issues for a k-tile."""

    @property
    @abstractmethod
    def mma_k(self) -> int:
        """Depth of the machine's tensor instruction."""

    @property
    @abstractmethod
    def k_order(self) -> str:
        """The order in which a CTA adds the products of its k-tiles, in words. See `AccumulationOrder`."""

    @property
    @abstractmethod
    def mma_opcode(self) -> str:
        """The opcode of every tensor instruction in SASS."""

    @property
    @abstractmethod
    def bank_conflicts(self) -> int:
        """Bank conflicts of the copies of a k-tile and of the reads of all warps."""

    @abstractmethod
    def numbers(self) -> dict[str, Any]:
        """Return the numbers that `--explain` shows for any spec, legal or not."""

    @abstractmethod
    def placements(self) -> dict[str, Any]:
        """Return what `--explain` shows about the operands in shared memory, for a legal spec."""

    # ---- What all families have in common ---------------------------------------------------------------------------

    @property
    def max_smem_bytes(self) -> int:
        """Shared memory that a CTA may have if `ctas_per_sm` of them share an SM."""
        limits = ARCHS[self.spec.arch].limits
        share = limits.smem_bytes_per_sm // max(1, self.spec.ctas_per_sm) // limits.smem_unit * limits.smem_unit
        return min(limits.smem_bytes_per_cta, share - limits.smem_reserved_bytes_per_cta)

    def register_limit(self, threads: int) -> int:
        """Return the most registers of a thread if `ctas_per_sm` CTAs of so many threads share an SM.

        Each partition of the SM holds its share of the warps, and allocates registers for a warp in units. ptxas 13.0 limits
        a kernel to the same number.
        """
        limits = ARCHS[self.spec.arch].limits
        warps = -(-threads // limits.warp_threads * max(1, self.spec.ctas_per_sm) // limits.sm_partitions)
        per_warp = (
            limits.registers_per_sm // limits.sm_partitions // warps // limits.register_unit * limits.register_unit
        )
        return min(limits.max_registers_per_thread, per_warp // limits.warp_threads)

    @property
    def raster_tiles(self) -> int:
        """Width of a group (in rows of tiles) or of a panel (in columns of tiles)."""
        if self.spec.raster.kind == "panel":
            return max(1, self.spec.raster.size // max(1, self.spec.cta_tile.n))
        return max(1, self.spec.raster.size)

    @property
    def max_ctas(self) -> int:
        """Largest grid of stream-K, in whole clusters: as many CTAs as a common GPU of the architecture holds."""
        return max_stream_k_ctas(ARCHS[self.spec.arch].number, self.spec.ctas_per_sm, self.spec.cluster.ctas)

    @property
    def streams(self) -> bool:
        """Whether launches use stream-K."""
        return self.spec.schedule.kind == "stream_k"

    @property
    def persistent(self) -> bool:
        """Whether CTAs compute tiles until none is left, so that the grid need not be larger than the GPU."""
        return self.spec.schedule.kind == "persistent"

    @property
    def accumulation_order(self) -> AccumulationOrder:
        """The order of a sum. A tile's m and n, its stages and its place in the grid do not change it."""
        spec, k = self.spec, self.spec.cta_tile.k
        sum_ = f"f16 sum of each k-tile of {k}, added in f32" if spec.acc == "f16_promoted" else f"{spec.acc} sum"
        parts = ""
        if spec.schedule.splits > 1:
            parts = f"; {spec.schedule.splits} parts of whole k-tiles of {k}, added in f32 in order of k"
        if self.streams:
            parts = f"; parts of {symbol_of(spec)}"
        fixed = not self.streams and spec.schedule.kind != LAUNCH
        return AccumulationOrder(f"{spec.dtype_a} mma k{self.mma_k}, {sum_}; {self.k_order}{parts}", fixed)

    def launch(self) -> dict[str, Any]:
        """Return the record's `launch`: what a launcher needs besides the problem."""
        tile = self.spec.cta_tile
        grid = {
            "rule": self.spec.schedule.kind,
            "tile_m": tile.m,
            "tile_n": tile.n,
            "splits": self.spec.schedule.splits,
            "persistent": self.persistent,
            **({"max_ctas": self.max_ctas} if self.streams else {}),
        }
        cluster = [self.spec.cluster.ctas, 1, 1]
        return {"threads": self.threads, "smem_bytes": self.smem_bytes, "cluster": cluster, "grid": grid}

    def traits(self) -> dict[str, Any]:
        """Return the record's `traits`: what a caller may rely on and must provide."""
        spec = self.spec
        partial_bytes = spec.cta_tile.m * spec.cta_tile.n * 4 if spec.schedule.in_workspace else 0
        return {
            "deterministic": True,
            "workspace": {"partial_bytes": partial_bytes},
            "graph_safe": True,
            "min_align": {"a": spec.align_a, "b": spec.align_b, "d": spec.align_d},
            "exact_tiles_only": False,
        }


# ==== Rules ====

Change = dict[str, str]
"""Fields of a spec with the texts of their new values: {"stages": "3"}."""

Check = Callable[[Any], "str | None"]
"""Takes a plan. Returns the violation, with the number and its limit, or None."""

Fixes = Callable[[Any], Iterable[Change]]
"""Takes a plan. Returns changes that may fix it, the nearest first. The planner tries them before it names one."""


@dataclass(frozen=True)
class Rule:
    """One thing that a legal spec must satisfy."""

    name: str
    check: Check
    fixes: Fixes


def collector(rules: list[Rule]) -> Callable[[Fixes], Callable[[Check], Check]]:
    """Return a decorator that adds a check to `rules`, under the name of its function and with its fixes."""

    def rule(fixes: Fixes) -> Callable[[Check], Check]:
        def add(check: Check) -> Check:
            rules.append(Rule(check.__name__, check, fixes))
            return check

        return add

    return rule


# ==== Family ====


@dataclass(frozen=True)
class Expectation:
    """The facts that inspection must find in a kernel's binary.

    Fields:
        mma_opcode: the exact opcode of every tensor instruction.
        mma_per_k_tile: the tensor instructions of a warp for a k-tile; `mma_theory` names the numbers it follows from.
        max_k_tiles_in_code: how often the body of the k loop may be in the code. From sm_100 on, ptxas 13.0 peels one iteration
            off a loop with a uniform branch.
        store_spacing: tensor instructions between two stores to shared memory in that loop; 0 checks none.
        required, forbidden: mnemonics. LDL and STL are always forbidden, unless `allow_spills` is set.
        global_bytes: what device variables may take.
    Units: bytes; `smem_bytes` is the dynamic shared memory of the launch, `max_registers` is per thread.
    """

    arch: str
    threads: int
    static_smem_bytes: int
    smem_bytes: int
    param_bytes: int
    max_registers: int
    mma_opcode: str
    mma_per_k_tile: int
    mma_theory: str
    required: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()
    max_k_tiles_in_code: int = 1
    store_spacing: int = 0
    global_bytes: int = 0
    allow_spills: bool = False


@dataclass(frozen=True)
class Form:
    """One way to write a family's kernels: the template below templates/, the header it includes, and the template's values.

    A form that includes no header has an empty one.
    """

    template: str
    entry_header: str
    values: Callable[[Any, str], dict[str, Any]]


def takes_anything(request: Request) -> str:
    """Return no objection."""
    return ""


@dataclass(frozen=True)
class Family:
    """One way to build a kernel. Each folder of families/ exports one, and families/__init__.py lists them.

    Fields:
        mma: the instructions of this family, for error messages.
        owns: tells whether a spec with this instruction and this copy is of the family.
        supports: tells whether an architecture can run it.
        plan: computes the numbers of a spec.
        resolve: fills in the open fields of a request. The result may be illegal.
        rules: what a legal spec must satisfy, with fixes.
        alias: names a kernel as CUTLASS would.
        expectation: states what inspection must find; takes the plan and whether spills are allowed.
        forms: how its kernels can be written, by the value of the spec's field `form`. Without any, the family is planned and
            explained, but not generated; `missing` says what has to be done first.
        claims: fields that ask for this family, each with the test of its value.
        objection: why the family cannot compute a request in which no field asks for it; "" if it can.
    """

    name: str
    mma: tuple[str, ...]
    owns: Callable[[str, str], bool]
    supports: Callable[[Arch], bool]
    plan: type[Plan]
    resolve: Callable[[Request], Spec]
    rules: tuple[Rule, ...]
    alias: Callable[[Spec], str]
    expectation: Callable[[Any, bool], Expectation]
    forms: Mapping[str, Form] = field(default_factory=dict)
    claims: Mapping[str, Callable[[Any], bool]] = field(default_factory=dict)
    objection: Callable[[Request], str] = takes_anything
    missing: str = ""


CLAIMING_FIELDS = (
    "mma",
    "store",
    "warp_tile",
    "fragment_stages",
    "store_spacing",
    "prefetch",
    "smem_alloc",
    "consumers",
    "cluster",
    "cooperation",
    "swap_ab",
    "serial_parts",
    "copy",
    "form",
)
"""Fields that can ask for a family. If several fields of a request do, the first one here decides."""


# ==== Requests ====

OUTPUTS = {"tf32": "f32"}
"""Default type of D for inputs whose own type D cannot have."""


def problem_fields(request: Request) -> Request:
    """Return the problem with its defaults: f16, layout `tn`, alpha and beta, rows aligned to 16 bytes."""
    plain = request.get("epilogue", "none") == "none"
    dtype = request.get("dtype_a", request.get("dtype_b", "f16"))
    dtype_d = request.get("dtype_d", OUTPUTS.get(dtype, dtype))
    return {
        "dtype_a": dtype,
        "dtype_b": request.get("dtype_b", dtype),
        "acc": "f32",
        "dtype_d": dtype_d,
        "layout": "tn",
        "beta": plain,
        "bias": "none",
        "activation": "none",
        "align_a": 16 // DTYPE_BYTES[dtype],
        "align_b": 16 // DTYPE_BYTES[dtype],
        "align_d": 16 // DTYPE_BYTES[dtype_d],
    }


def distinct(choices: Iterable[Request]) -> Iterable[Request]:
    """Yield each choice of the same fields once. Choices repeat where the request already sets a field."""
    seen = set()
    for choice in choices:
        values = tuple(choice.values())
        if values not in seen:
            seen.add(values)
            yield choice
