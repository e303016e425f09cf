"""Operands of PTX as C++: registers are variables, and results are converted to the width of their register."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from generator.ptx.parser import (
    Address,
    Number,
    Operand,
    PtxError,
    PtxKernel,
    Register,
    Special,
    Symbol,
    Variable,
    bits_of_type,
)

C_TYPES = {
    "pred": "bool",
    "f32": "float",
    "f64": "double",
    "f16": "uint16_t",
    "bf16": "uint16_t",
    **{f"{sign}{width}": f"{'' if sign == 's' else 'u'}int{width}_t" for sign in "bsu" for width in (8, 16, 32, 64)},
}
"""The C++ type of a value in an expression."""

_SPECIAL = {
    "%laneid": "place->thread % 32",
    "%warpid": "place->thread / 32",
    "%tid.x": "place->thread % block[0]",
    "%tid.y": "place->thread / block[0] % block[1]",
    "%tid.z": "place->thread / block[0] / block[1]",
    **{f"%ntid.{axis}": f"block[{i}]" for i, axis in enumerate("xyz")},
    **{f"%ctaid.{axis}": f"place->cta_index[{i}]" for i, axis in enumerate("xyz")},
    **{f"%nctaid.{axis}": f"grid[{i}]" for i, axis in enumerate("xyz")},
    **{f"%cluster_ctaid.{axis}": f"place->cta_index[{i}] % cluster[{i}]" for i, axis in enumerate("xyz")},
    **{f"%cluster_nctaid.{axis}": f"cluster[{i}]" for i, axis in enumerate("xyz")},
    **{f"%clusterid.{axis}": f"place->cta_index[{i}] / cluster[{i}]" for i, axis in enumerate("xyz")},
    **{f"%nclusterid.{axis}": f"grid[{i}] / cluster[{i}]" for i, axis in enumerate("xyz")},
    "%cluster_ctarank": "place->cluster_rank",
    "%cluster_nctarank": "cluster_ctas",
    "%is_explicit_cluster": "cluster_ctas > 1",
    "%lanemask_eq": "(1u << place->thread % 32)",
    "%lanemask_lt": "((1u << place->thread % 32) - 1)",
    "%lanemask_le": "((2u << place->thread % 32) - 1)",
    "%lanemask_gt": "~((2u << place->thread % 32) - 1)",
    "%lanemask_ge": "~((1u << place->thread % 32) - 1)",
    "%nwarpid": "(cta_threads / 32)",
    "%gridid": "0",
}
_WORD = re.compile(r"\W")


class Writer:
    """Writes the operands of one kernel.

    `accumulators` maps the names of registers that may hold accumulators of wgmma to their places in `acc`. `texts` are the names
    of constant texts, for printf and assert.
    """

    def __init__(
        self,
        kernel: PtxKernel,
        shared_offsets: Mapping[str, int],
        accumulators: Mapping[str, int],
        texts: Collection[str] = (),
    ) -> None:
        self._parameters = {one.name: i for i, one in enumerate(kernel.parameters)}
        self._shared = shared_offsets
        self._locals = {one.name for one in kernel.variables if one.space == "local"}
        self._arguments = {one.name for one in kernel.variables if one.space == "param"}
        self._texts = texts
        self._accumulators = accumulators

    @property
    def has_accumulators(self) -> bool:
        return bool(self._accumulators)

    @staticmethod
    def variable(register: Register) -> str:
        """Return the name of a register's variable."""
        return "v_" + _WORD.sub("_", register.name)

    @staticmethod
    def label(name: str) -> str:
        return "L_" + _WORD.sub("_", name)

    @staticmethod
    def bytes_of(kind: str) -> int:
        return bits_of_type(kind) // 8

    def accumulators(self, registers: Iterable[Operand]) -> list[int]:
        return [self._accumulators[register.name] for register in registers]

    def read(self, operand: Operand, kind: str, line: int) -> str:
        """Return an operand as an expression of type `kind`."""
        if isinstance(operand, Register):
            return self._read_register(operand, kind, line)
        if isinstance(operand, Number):
            return self._constant(operand, kind)
        if isinstance(operand, Special):
            if operand.name not in _SPECIAL:
                raise PtxError(f"special register {operand.name} is not supported")
            return f"{C_TYPES[kind]}({_SPECIAL[operand.name]})"
        if isinstance(operand, Symbol):
            return f"{C_TYPES[kind]}({self._symbol(operand.name)})"
        raise PtxError(f"unknown operand {operand}")

    def _read_register(self, register: Register, kind: str, line: int) -> str:
        if not register.type:
            raise PtxError("_ is not readable")
        place = self._accumulators.get(register.name)
        value = self.variable(register) if place is None else f"acc.read({line}, {place})"
        if kind == "f32" and bits_of_type(register.type) == 32:
            return f"__builtin_bit_cast(float, {value})"  # the compiler takes longer for a function
        if kind in ("f32", "f64"):
            return f"ptx::{kind}({value})"
        same = bits_of_type(register.type) == bits_of_type(kind) and kind[0] != "s"
        return value if same or kind == "pred" else f"{C_TYPES[kind]}({value})"

    def _constant(self, number: Number, kind: str) -> str:
        if kind == "pred":
            return "true" if number.value else "false"
        if kind == "f32":
            return f"ptx::f32(0x{number.value & 0xFFFFFFFF:x}u)"
        if kind == "f64":
            return f"ptx::f64(0x{number.value & 0xFFFFFFFFFFFFFFFF:x}ull)"
        bits = number.value & ((1 << bits_of_type(kind)) - 1)
        return f"{C_TYPES[kind]}(0x{bits:x}{'ull' if bits >> 32 else 'u'})"

    def _symbol(self, name: str) -> str:
        if name in self._parameters:
            return f"parameter_{self._parameters[name]}"
        if name in self._shared:
            return str(self._shared[name])
        if name in self._locals:
            return f"reinterpret_cast<uintptr_t>({self.local(name)})"
        if name in self._texts:
            return "0"  # of a text for printf or assert, which is not printed
        raise PtxError(f"variable {name} is not supported: it is neither a parameter nor in shared or local memory")

    @staticmethod
    def local(name: str) -> str:
        """Return the name of a local variable's array."""
        return "local_" + _WORD.sub("_", name)

    def is_argument(self, operand: Operand) -> bool:
        """Return whether an address is in the arguments or the result of a call, not in the parameters of the kernel."""
        base = operand.base if isinstance(operand, Address) else operand
        return isinstance(base, Symbol) and base.name in self._arguments

    def address(self, operand: Operand, line: int) -> str:
        """Return an address as an expression of 64 bits. Registers of 32 bits count as unsigned."""
        if not isinstance(operand, Address):
            raise PtxError("an address is expected")
        base = operand.base
        narrow = isinstance(base, Register) and bits_of_type(base.type) == 32
        kind = "u32" if narrow else "u64"
        value = self.read(base, kind, line)
        if not operand.offset:
            return value
        sign, offset = ("+", operand.offset) if operand.offset > 0 else ("-", -operand.offset)
        return f"{C_TYPES[kind]}({value} {sign} {offset}u)"

    def write(self, target: Operand, kind: str, value: str, line: int) -> str:
        """Return the statement that assigns an expression of type `kind` to a register."""
        if not isinstance(target, Register):
            raise PtxError("a register is expected")
        if not target.type:
            return f"(void)({value});"
        if kind == "f32":
            value = f"__builtin_bit_cast(uint32_t, float({value}))"
        elif kind == "f64":
            value = f"ptx::bits64({value})"
        elif kind[0] == "s":  # extends the sign
            value = f"{C_TYPES[kind]}({value})"
        place = self._accumulators.get(target.name)
        if place is not None:
            return f"acc.write({line}, {place}, {value});"
        stored = "bool" if target.type == "pred" else C_TYPES[f"b{bits_of_type(target.type)}"]
        return f"{self.variable(target)} = {stored}({value});"

    def copied(self, target: Operand, source: Operand) -> tuple[int, int] | None:
        """Return the places of two registers that may both hold accumulators."""
        places = [self._accumulators.get(one.name, -1) if isinstance(one, Register) else -1 for one in (target, source)]
        return None if -1 in places else (places[0], places[1])

    @staticmethod
    def copies(pairs: Iterable[tuple[int, int]]) -> str:
        """Return the statements that copy accumulators, as pairs of target and source."""
        pairs = list(pairs)
        targets, sources = {to for to, _ in pairs}, {source for _, source in pairs}
        if len(targets) == len(pairs) and not targets & sources:  # in any order, so neighbours together
            runs: list[list[int]] = []
            for to, source in sorted(pairs):
                if runs and (to, source) == (runs[-1][0] + runs[-1][2], runs[-1][1] + runs[-1][2]):
                    runs[-1][2] += 1
                else:
                    runs.append([to, source, 1])
            if 2 * len(runs) <= len(pairs):
                return " ".join(f"acc.copy({to}, {source}, {count});" for to, source, count in runs)
        listed = ", ".join(f"{{{to}, {source}}}" for to, source in pairs)
        return f"{{ static constexpr uint16_t pairs[][2] = {{{listed}}}; acc.copy(pairs); }}"

    def move(self, target: Operand, source: Operand, kind: str, line: int) -> str:
        """Return the statement of mov. A copy of an accumulator in flight is another name for it."""
        pair = self.copied(target, source)
        if pair:
            return self.copies([pair])
        to = self._accumulators.get(target.name) if isinstance(target, Register) else None
        if to is None:
            return self.write(target, _bits(kind), self.read(source, _bits(kind), line), line)
        return f"acc.set({to}, {self.read(source, _bits(kind), line)});"


def _bits(kind: str) -> str:
    return kind if kind == "pred" else "b" + kind[1:]


def shared_offsets(variables: Iterable[Variable]) -> dict[str, int]:
    """Return the offset of each shared variable: those with a size first, then the dynamic ones, which share an offset."""
    shared = [one for one in variables if one.space == "shared"]
    offsets, at = {}, 0
    for one in sorted(shared, key=lambda one: one.size_bytes == 0):
        at = -(-at // one.align) * one.align
        offsets[one.name] = at
        at += one.size_bytes
    return offsets
