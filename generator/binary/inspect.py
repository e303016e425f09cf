"""Hold a compiled kernel against what the plan said of it, with both figures in every complaint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from generator.arch import ARCHS, Arch
from generator.binary.elf import CubinFacts, read_cubin
from generator.binary.occupancy import occupancy
from generator.binary.ptxas_log import PtxasReport, parse_ptxas_log, ptxas_warnings
from generator.binary.sass import Code, Listing, disassemble

_LOCAL = ("LDL", "STL")


@dataclass(frozen=True)
class Expectation:
    """What the plan says of a kernel's binary.

    `mma_opcode` is the exact opcode of every tensor instruction, `mma_per_k_tile` how many of them a warp needs for a
    k-tile, and `mma_theory` says where the number comes from. The k loop's body may stand in the code up to
    `max_k_tiles_in_code` times: from sm_100 on ptxas 13.0 peels a round off a loop that holds a uniform branch.
    `store_spacing` is how many tensor instructions part two stores to shared memory in that loop; 0 asks for none.
    `required` and `forbidden` are mnemonics; LDL and STL need no naming. With `allow_spills` local memory is counted
    and not complained of. `global_bytes` is what device variables may take.
    Units: bytes; `smem_bytes` is the dynamic shared memory of the launch, `max_registers` is a thread's.
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
class Binary:
    """A compiled kernel, what is expected of it, and the log that ptxas left (its `-v` report, where there is one)."""

    cubin: bytes
    symbol: str
    expectation: Expectation
    ptxas_log: str = ""


@dataclass(frozen=True)
class Resources:
    """What a kernel takes: registers a thread, stack bytes a thread, shared memory a CTA, and the CTAs an SM holds."""

    registers: int
    spill_bytes: int
    stack_bytes: int
    smem_bytes: int
    ctas_per_sm: int
    warps_per_sm: int
    occupancy: float


@dataclass(frozen=True)
class Inspection:
    """The outcome: figures for the record, and one line for each thing that is not as planned."""

    resources: Resources
    sass: dict[str, int]
    code_bytes: int
    store_spacing: int | None
    violations: tuple[str, ...]


def inspect(binary: Binary, nvdisasm: Path | None = None) -> Inspection:
    """Inspect one kernel; see `inspect_all`."""
    return inspect_all((binary,), nvdisasm)[0]


def inspect_all(binaries: Sequence[Binary], nvdisasm: Path | None = None) -> list[Inspection]:
    """Inspect kernels, in the order given, with one disassembly for each architecture.

    Raises: HgemmError where a cubin cannot be read or nvdisasm cannot be run.
    """
    facts = [read_cubin(binary.cubin, binary.symbol) for binary in binaries]
    codes = [Code(binary.expectation.arch, fact.text) for binary, fact in zip(binaries, facts)]
    listings = disassemble(codes, nvdisasm)
    return [_judge(*pair) for pair in zip(binaries, facts, listings)]


def _judge(binary: Binary, facts: CubinFacts, listing: Listing) -> Inspection:
    expected, arch = binary.expectation, ARCHS[binary.expectation.arch]
    report = parse_ptxas_log(binary.ptxas_log).get(binary.symbol)
    counts = listing.counts()
    resources = _resources(expected, arch, facts, report, listing)
    spacing = _store_spacing(listing, expected.mma_opcode) if expected.store_spacing else None
    violations = (
        *_contract(expected, arch, facts),
        *_launch(expected, arch, resources),
        *_local_memory(expected, resources, counts),
        *_same_build(report, resources, listing),
        *_tensor_instructions(expected, counts, listing.opcode_counts()),
        *_stores_apart(expected, spacing),
        *(f"{name} missing: the plan needs it" for name in expected.required if not counts.get(name)),
        *(f"{name} {counts[name]}, the plan allows 0" for name in _forbidden(expected) if counts.get(name)),
        *(f"ptxas warns: {line}" for line in ptxas_warnings(binary.ptxas_log)),
    )
    return Inspection(resources, counts, facts.code_bytes, spacing, violations)


def _forbidden(expected: Expectation) -> list[str]:
    """What else than local memory, which `_local_memory` judges, must not be there."""
    return [name for name in expected.forbidden if name not in _LOCAL]


def _resources(
    expected: Expectation, arch: Arch, facts: CubinFacts, report: PtxasReport | None, listing: Listing
) -> Resources:
    smem_bytes = facts.static_smem_bytes + expected.smem_bytes
    residency = occupancy(arch.limits, expected.threads, facts.registers, smem_bytes)
    return Resources(
        registers=facts.registers,
        spill_bytes=report.spill_bytes if report else sum(map(listing.bytes_moved, _LOCAL)),
        stack_bytes=facts.stack_bytes,
        smem_bytes=smem_bytes,
        ctas_per_sm=residency.ctas_per_sm,
        warps_per_sm=residency.warps_per_sm,
        occupancy=residency.fraction,
    )


def _contract(expected: Expectation, arch: Arch, facts: CubinFacts) -> list[str]:
    """Compare the numbers that host and kernel must agree on."""
    pairs = {
        "arch number": (facts.arch_number, arch.number),
        "threads a CTA": (facts.max_threads, expected.threads),
        "static smem bytes": (facts.static_smem_bytes, expected.static_smem_bytes),
        "parameter bytes": (facts.param_bytes, expected.param_bytes),
    }
    lines = [f"{what} {found}, the plan says {said}" for what, (found, said) in pairs.items() if found != said]
    if facts.global_bytes > expected.global_bytes:
        lines.append(f"device variables {facts.global_bytes} B, the plan allows {expected.global_bytes} B")
    return lines


def _launch(expected: Expectation, arch: Arch, resources: Resources) -> list[str]:
    lines = []
    if resources.registers > expected.max_registers:
        lines.append(f"registers {resources.registers}, the plan allows {expected.max_registers}")
    if resources.smem_bytes > arch.limits.smem_bytes_per_cta:
        lines.append(f"smem {resources.smem_bytes} B > {arch.limits.smem_bytes_per_cta} B of {arch.name}")
    if not resources.ctas_per_sm:
        taken = f"{expected.threads} threads of {resources.registers} registers, {resources.smem_bytes} B of smem"
        lines.append(f"no CTA fits on an SM of {arch.name}: {taken}")
    return lines


def _local_memory(expected: Expectation, resources: Resources, counts: dict[str, int]) -> list[str]:
    """Complain of spills and of arrays that do not live in registers."""
    loads, stores = (counts.get(name, 0) for name in _LOCAL)
    if expected.allow_spills or not (loads or stores or resources.spill_bytes or resources.stack_bytes):
        return []
    cause = "registers spill" if resources.spill_bytes else "an array is indexed at run time"
    figures = f"LDL {loads}, STL {stores}, {resources.spill_bytes} B spilled, {resources.stack_bytes} B of stack"
    return [f"{figures}, the plan allows 0 of each: {cause}"]


def _same_build(report: PtxasReport | None, resources: Resources, listing: Listing) -> list[str]:
    """Compare ptxas's report, where there is one, with the code, in which arrays may add to the spills' bytes."""
    if report is None:
        return []
    lines = []
    if report.registers != resources.registers:
        lines.append(f"ptxas reports {report.registers} registers, the cubin {resources.registers}: not one build")
    for name, told in (("LDL", report.spill_load_bytes), ("STL", report.spill_store_bytes)):
        found = listing.bytes_moved(name)
        if found < told:
            lines.append(f"ptxas reports {told} B of spilling {name}, the code has {found} B: not one build")
    return lines


def _tensor_instructions(expected: Expectation, counts: dict[str, int], opcodes: dict[str, int]) -> list[str]:
    mnemonic = expected.mma_opcode.partition(".")[0]
    found, wanted, copies = counts.get(mnemonic, 0), expected.mma_per_k_tile, expected.max_k_tiles_in_code
    lines = []
    if found not in {wanted * copy for copy in range(1, copies + 1)}:
        unrolled = wanted and found > wanted and found % wanted == 0
        cause = "the k loop was unrolled" if unrolled else "atoms are missing or repeated"
        times = f", at most {copies} of them in the code" if copies > 1 else ""
        lines.append(f"{mnemonic} {found}, theory says {wanted} a k-tile ({expected.mma_theory}){times}: {cause}")
    others = [name for name in opcodes if name.partition(".")[0] == mnemonic and name != expected.mma_opcode]
    if others:
        lines.append(f"{', '.join(others)} found, the plan says {expected.mma_opcode} only")
    return lines


def _store_spacing(listing: Listing, mma_opcode: str) -> int | None:
    """Return the fewest tensor instructions between two stores to shared memory in the k loop; None where there are no two.

    Counted within one turn of the loop: what parts its last store from the next turn's first is not.
    """
    tensor = mma_opcode.partition(".")[0]
    told = "".join({tensor: "T", "STS": "S"}.get(each.mnemonic, "") for each in listing.loop_of(tensor))
    return min(map(len, told.split("S")[1:-1]), default=None)


def _stores_apart(expected: Expectation, found: int | None) -> list[str]:
    if not expected.store_spacing or (found is not None and found >= expected.store_spacing):
        return []
    tensor = expected.mma_opcode.partition(".")[0]
    told = "no two stores are in the k loop" if found is None else f"{found} {tensor} between two STS in the k loop"
    return [f"{told}, the plan says {expected.store_spacing}: ptxas moved them"]
