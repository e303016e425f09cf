"""Runs the PTX of one kernel on this machine, a warp at a time: the instructions that modules of CuTe DSL come to.

Every access to memory must lie within a buffer and be aligned. Asynchronous copies land at once, or not before they are waited
for; warps run in order from one barrier to the next, forwards or backwards. Shared memory begins as NaN.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterable
from itertools import cycle

import numpy as np
from ptx_instructions import LANES, Copy, Fault, Step, Values, literal, step_of

from generator.proof.machine import PERSISTENT_CTAS
from hgemm.launch import check, grid_x, matrices
from hgemm.launch_traits import LaunchTraits
from hgemm.problem import Problem

_STATEMENT = re.compile(r"(?:@(!?)(%p\d+)\s+)?([a-z][\w.:]*)\s*(.*)", re.DOTALL)
_OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+")
_WHOLE_WARP = re.compile(r"\b(?:mma|ldmatrix|shfl)\.sync\b")
_REGISTERS = {"%p": np.bool_, "%rs": np.uint16, "%r": np.uint32, "%rd": np.uint64, "%f": np.uint32, "%h": np.uint16}


class Memory:
    """The parts of this process's memory that a launch may touch, as (address, bytes)."""

    def __init__(self, spans: Iterable[tuple[int, int]]) -> None:
        self._spans = [
            (base, np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(base)))
            for base, size in spans
            if size > 0
        ]

    def read(self, addresses: Values, width: int) -> np.ndarray:
        """Return the bytes (lanes, width) at addresses of one span."""
        span, places = self._places(addresses, width)
        return span[places]

    def write(self, addresses: Values, moved: np.ndarray) -> None:
        span, places = self._places(addresses, moved.shape[1])
        span[places] = moved

    def _places(self, addresses: Values, width: int) -> tuple[np.ndarray, np.ndarray]:
        found = addresses.astype(np.int64)
        for base, span in self._spans:
            offsets = found - base
            if offsets.min() >= 0 and offsets.max() + width <= span.size:
                if (found % width).any():
                    raise Fault(f"global access of {width} B that is not aligned, at {offsets}")
                return span, offsets[:, None] + np.arange(width)
        raise Fault(f"global access of {width} B outside of every operand: {[hex(at) for at in found[:4]]}")


class Program:
    """The kernel of a PTX text, decoded."""

    def __init__(self, ptx: str) -> None:
        body = re.sub(r"//[^\n]*", "", ptx)
        self.threads = int(re.search(r"\.maxntid (\d+)", body)[1])
        body = body[body.index("{", body.index(".maxntid")) + 1 : body.rindex("}")]
        self.labels: dict[str, int] = {}
        self.whole_warp: set[int] = set()
        self.steps: list[tuple[str, bool, str, Step | str]] = []
        for text in re.split(r";|(?<=:)\n", body):
            text = text.strip()
            if text.endswith(":"):
                self.labels[text[:-1]] = len(self.steps)
            elif text and not text.startswith("."):
                if _WHOLE_WARP.search(text):
                    self.whole_warp.add(len(self.steps))
                self.steps.append(self._decode(text))

    @staticmethod
    def _decode(text: str) -> tuple[str, bool, str, Step | str]:
        match = _STATEMENT.fullmatch(text)
        if not match:
            raise Fault(f"not understood: {text}")
        negated, predicate, opcode, rest = match.groups()
        operands = _OPERAND.findall(rest)
        if opcode in ("bra", "bra.uni"):
            return predicate or "", bool(negated), "bra", operands[0]
        if opcode in ("ret", "bar.sync"):
            return predicate or "", bool(negated), opcode, ""
        return predicate or "", bool(negated), "step", step_of(opcode, operands)

    def meets(self, place: int) -> bool:
        """Tell whether a warp's lanes wait for one another before a statement, which they execute together."""
        return self.steps[place][2] == "bar.sync" or place in self.whole_warp


class Warp:
    """32 lanes of a CTA, each at its own statement; those that are furthest behind go on, until they must meet."""

    def __init__(self, cta: Cta, first: int) -> None:
        self.cta, self.thread = cta, np.arange(first, first + LANES, dtype=np.uint32)
        self.registers: dict[str, Values] = {}
        self.at = np.zeros(LANES, np.int64)
        self.copies: list[Copy] = []
        self.commits = np.zeros(LANES, np.int64)

    def register(self, name: str) -> Values:
        found = self.registers.get(name)
        if found is None:
            kind = _REGISTERS[re.match(r"%[a-z]+", name)[0]]
            found = self.registers[name] = np.zeros(LANES, kind)
        return found

    def run(self) -> bool:
        """Go on to the next barrier; tell whether there was one."""
        program = self.cta.program
        while (alive := self.at >= 0).any():
            free = alive & [place < 0 or not program.meets(place) for place in self.at]
            lanes = free & (self.at == self.at[free].min()) if free.any() else alive
            place = int(self.at[lanes][0])
            if (self.at[lanes] != place).any():
                raise Fault(f"the lanes of a warp must meet, but wait at statements {sorted({*self.at[lanes]})}")
            others = self.at[alive & ~lanes & (self.at > place)]
            if self._go_on(lanes, place, int(others.min()) if others.size else len(program.steps), not free.any()):
                return True
        return False

    def _go_on(self, lanes: Values, place: int, until: int, together: bool) -> bool:
        """Execute from a statement on to a branch, a meeting, or a statement where others are; tell whether it was a barrier."""
        program = self.cta.program
        while place < until and (together or not program.meets(place)):
            predicate, negated, kind, act = program.steps[place]
            doing = lanes & (self.register(predicate) ^ negated) if predicate else lanes
            place += 1
            if kind == "step":
                if doing.any():
                    act(self, doing)
                continue
            self.at[lanes] = place
            if kind == "bra":
                self.at[doing] = program.labels[act]
            elif kind == "ret":
                self.at[doing] = -1
            return kind == "bar.sync"
        self.at[lanes] = place
        return False

    # ---- Operands ---------------------------------------------------------------------------------------------------

    def value(self, text: str, width: int) -> Values:
        """Return an operand of so many bytes, as unsigned numbers."""
        kind = np.dtype(f"u{width}") if width > 1 else np.dtype(bool)
        if text in _SPECIAL:
            return _SPECIAL[text](self).astype(kind)
        if text.startswith("%"):
            found = self.register(text)
            return found if found.dtype == kind else found.astype(kind)
        if text.startswith("0f"):
            return np.full(LANES, int(text[2:], 16), kind)
        if text.startswith("__dynamic_shmem"):
            return np.zeros(LANES, kind)
        return np.full(LANES, literal(text) & ((1 << 8 * width) - 1) if width > 1 else bool(literal(text)), kind)

    def floats(self, text: str) -> np.ndarray:
        return self.value(text, 4).view(np.float32)

    def signed(self, text: str, width: int) -> np.ndarray:
        return self.value(text, width).view(np.dtype(f"i{width}"))

    def put(self, name: str, values: np.ndarray, lanes: Values) -> None:
        if name == "_":
            return
        register = self.register(name)
        np.copyto(register, values if values.dtype == register.dtype else values.view(register.dtype), where=lanes)

    def address(self, text: str, width: int) -> Values:
        name, _, offset = text.strip("[] ").partition("+")
        return self.value(name, width) + np.dtype(f"u{width}").type(int(offset or 0) & ((1 << 8 * width) - 1))

    # ---- Asynchronous copies ----------------------------------------------------------------------------------------

    def land(self, lane_commits: Values) -> None:
        """Land the copies whose group is no later than so many of their lane."""
        due = [copy for copy in self.copies if copy.group < lane_commits[copy.lane]]
        self.copies = [copy for copy in self.copies if copy.group >= lane_commits[copy.lane]]
        for copy in due:
            self.cta.land(copy)


class Cta:
    """One CTA of a grid."""

    def __init__(
        self, program: Program, parameter: bytes, place: int, ctas: int, memory: Memory, smem_bytes: int, late: bool
    ) -> None:
        self.program, self.parameter, self.place, self.ctas = program, np.frombuffer(parameter, np.uint8), place, ctas
        self.memory, self.shared, self.late = memory, np.full(smem_bytes, 0xFF, np.uint8), late
        self.warps = [Warp(self, first) for first in range(0, program.threads, LANES)]

    def run(self, backwards: bool) -> None:
        order = self.warps[::-1] if backwards else self.warps
        while any(waiting := [warp.run() for warp in order]):
            if not all(waiting):
                raise Fault("a barrier that not all warps come to")

    def shared_at(self, addresses: Values, width: int) -> np.ndarray:
        found = addresses.astype(np.int64)
        if found.max() + width > self.shared.size or (found % width).any():
            raise Fault(f"shared access of {width} B at {found} of {self.shared.size} B")
        return found[:, None] + np.arange(width)

    def land(self, copy: Copy) -> None:
        moved = np.zeros((1, copy.width), np.uint8)
        if copy.source % copy.width:
            raise Fault(f"cp.async of {copy.width} B that is not aligned")
        if copy.read == copy.width:
            moved = self.memory.read(np.array([copy.source], np.uint64), copy.width)
        for at in range(copy.read % copy.width):  # memory may end anywhere
            moved[0, at] = self.memory.read(np.array([copy.source + at], np.uint64), 1)[0, 0]
        self.shared[self.shared_at(np.array([copy.target]), copy.width)] = moved


class PtxKernel:
    """A variant whose PTX is launched here: it stands in for a device's kernel, each launch in the next manner."""

    def __init__(self, traits: LaunchTraits, ptx: str) -> None:
        self.traits, self._program = traits, Program(ptx)
        self._manners = cycle([(True, False), (False, True), (True, True), (False, False)])

    def launch(
        self, problem: Problem, *, device: int = 0, workspace_size: int | None = None, zeroed: bool = False
    ) -> None:
        """Check a problem and run it to the end. Raises: ProblemError, or Fault."""
        check(problem, self.traits, workspace_size)
        places = matrices(problem, self.traits).values()
        memory = Memory((matrix.pointer, matrix.end - matrix.pointer) for matrix in places)
        ctas = grid_x(self.traits, problem.m, problem.n, problem.batch, PERSISTENT_CTAS)
        late, backwards = next(self._manners)
        with np.errstate(all="ignore"):
            for place in range(ctas):
                Cta(self._program, problem.pack(), place, ctas, memory, self.traits.smem_bytes, late).run(backwards)


_SPECIAL: dict[str, Callable[[Warp], Values]] = {
    "%tid.x": lambda warp: warp.thread,
    "%ctaid.x": lambda warp: np.full(LANES, warp.cta.place, np.uint32),
    "%nctaid.x": lambda warp: np.full(LANES, warp.cta.ctas, np.uint32),
}
