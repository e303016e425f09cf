"""Rules by which a change of one PTX instruction changes nothing that a kernel does.

Each rule reads the control flow of the whole kernel, so its reason is checked, not claimed.
"""

from __future__ import annotations

from collections.abc import Callable

from generator.ptx.instructions import row_of
from generator.ptx.parser import Instruction, Label, PtxKernel, Symbol

_HINTS = {
    "griddepcontrol.launch_dependents": "the next launch may begin when this one ends, which is later",
    "setmaxnreg": "it moves registers between warpgroups; inspection rejects a kernel whose registers do not fit",
    "prefetch": "it only warms a cache",
}
"""Instructions whose absence changes the speed only. Source: PTX ISA 9.0, their sections."""

_FOR_SHARED_MEMORY = ("cp.async.wait", "cp.async.commit", "cp.async.bulk.wait", "fence.proxy.async.shared")


def equivalence(kernel: PtxKernel, place: int, way: str, passed: Instruction | None = None) -> str:
    """Return why a fault at an instruction of a kernel changes nothing; "" if no rule says so.

    Fields: `passed` is the instruction that a moved one is put behind.
    """
    one = kernel.body[place]
    assert isinstance(one, Instruction)
    for name, reason in _HINTS.items():
        if one.opcode.startswith(name):
            return reason
    if way == "drop" and one.opcode.startswith(("bar.sync", "barrier.sync", "bar.warp.sync")):
        return _repeated(kernel, place)
    if way in ("drop", "move") and one.opcode.startswith("fence.mbarrier_init"):
        return _local_mbarriers(kernel)
    if way == "move" and passed is not None:
        return _indifferent(one, passed)
    return ""


# ==== Control flow ====


def _next_places(kernel: PtxKernel) -> list[list[int]]:
    """Return for each place of the body the places that may follow. The end of the kernel is len(body)."""
    labels = {one.name: at for at, one in enumerate(kernel.body) if isinstance(one, Label)}
    found: list[list[int]] = []
    for at, one in enumerate(kernel.body):
        if isinstance(one, Label):
            found.append([at + 1])
            continue
        branches = one.opcode == "bra" or one.opcode.startswith("bra.")
        ends = one.opcode in ("ret", "exit")
        targets = [labels[part.name] for part in one.operands if isinstance(part, Symbol)] if branches else []
        targets += [len(kernel.body)] if ends else []
        if not (branches or ends) or one.predicate is not None:
            targets.append(at + 1)
        found.append(targets)
    return found


def _before(following: list[list[int]]) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in range(len(following) + 1)]
    for at, targets in enumerate(following):
        for target in targets:
            found[target].append(at)
    return found


def _always_reaches(
    steps: list[list[int]], first: int, wanted: Callable[[int], bool], harmless: Callable[[int], bool], end: bool
) -> bool:
    """Return whether every path from a place leads to a wanted place, and passes harmless places only.

    A path may also end if `end`. One that never ends passes harmless places only, so it counts.
    """
    seen, left = {first}, list(steps[first])
    while left:
        at = left.pop()
        if at in seen or (at < len(steps) and wanted(at)):
            continue
        seen.add(at)
        if at == len(steps) or not steps[at]:
            if not end:
                return False
        elif not harmless(at):
            return False
        else:
            left += steps[at]
    return True


# ==== Rules ====


def _repeated(kernel: PtxKernel, place: int) -> str:
    """A barrier is not needed next to an equal one, or if the kernel ends: no access is between them."""
    barrier, body = kernel.body[place], kernel.body
    following = _next_places(kernel)

    def equal(at: int) -> bool:
        other = body[at]
        return at != place and isinstance(other, Instruction) and _same(other, barrier)

    def harmless(at: int) -> bool:
        return isinstance(body[at], Label) or not _communicates(body[at])

    if _always_reaches(following, place, equal, harmless, end=True):
        return "an equal barrier follows, or the kernel ends, before any access of memory"
    before = _before(following)[: len(body)]
    if before[place] and _always_reaches(before, place, equal, harmless, end=False):
        return "an equal barrier precedes, and no access of memory is between"
    return ""


def _local_mbarriers(kernel: PtxKernel) -> str:
    """The fence after mbarrier.init is for other CTAs and for the TMA. A barrier orders the threads of the CTA."""
    others = ("mbarrier::complete_tx", "shared::cluster", "mapa", "multicast")
    alone = all(extent <= 1 for extent in kernel.cluster)
    used = any(word in one.opcode for one in kernel.body if isinstance(one, Instruction) for word in others)
    return "" if used or not alone else "only threads of the CTA use its mbarriers, and a barrier follows the fence"


def _indifferent(one: Instruction, passed: Instruction) -> str:
    """What an instruction orders, if the access that it is moved behind is of another kind."""
    row, _ = row_of(passed.opcode)
    if one.opcode == "cp.async.commit_group" and passed.opcode.startswith(("cp.async.ca", "cp.async.cg")):
        return "the copy joins an earlier group, which no wait leaves out that waited for its own"
    if "shared" not in row.memory and one.opcode.startswith(_FOR_SHARED_MEMORY):
        return "it orders shared memory, and the access that it is moved behind is of global memory"
    return ""


def _same(one: Instruction, other: object) -> bool:
    return isinstance(other, Instruction) and (one.opcode, one.operands, one.predicate) == (
        other.opcode,
        other.operands,
        other.predicate,
    )


def _communicates(one: Instruction) -> bool:
    """Return whether other threads may notice an instruction, or it notices them."""
    row, _ = row_of(one.opcode)
    accesses = row.memory and row.memory != "reads param"
    return bool(accesses or (row.ordering and not row.ordering.startswith("none")))
