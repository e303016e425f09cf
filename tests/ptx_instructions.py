"""The instructions that modules of CuTe DSL come to, each as a step of a warp's lanes; see ptx_machine."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

LANES = 32
Values = np.ndarray  # of a warp's lanes, unsigned whatever they stand for
Step = Callable[[Any, Values], None]  # takes the warp, and the lanes that take part

WIDTHS = {"pred": 1, "b16": 2, "b32": 4, "b64": 8, "u16": 2, "u32": 4, "u64": 8, "s32": 4, "s64": 8, "f32": 4, "s16": 2}
_COMPARED = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


class Fault(AssertionError):
    """What a kernel must not do: reach past a buffer, meet a barrier alone, use what this machine does not know."""


@dataclass(frozen=True)
class Copy:
    """One asynchronous copy of a lane: where it lands, what it reads and how much, and how many commits came before it."""

    lane: int
    target: int
    source: int
    width: int
    read: int
    group: int


def step_of(opcode: str, operands: list[str]) -> Step:
    """Return what an instruction does. Raises: Fault where it is not known here."""
    for pattern, make in _INSTRUCTIONS:
        match = re.fullmatch(pattern, opcode)
        if match:
            return make(match, operands)
    raise Fault(f"unknown here: {opcode} {', '.join(operands)}")


def literal(text: str) -> int:
    return int(text.removesuffix("U"), 0)


def _names(braced: str) -> list[str]:
    return [name.strip() for name in braced.strip("{}").split(",")]


def _integers(operation: Callable[..., np.ndarray], signed: bool = False):
    """Return what makes a step of an operation on integers, all of one width."""

    def make(match: re.Match, operands: list[str]) -> Step:
        width = WIDTHS[match["type"]]

        def step(warp, lanes: Values) -> None:
            read = warp.signed if signed else warp.value
            warp.put(operands[0], operation(*(read(text, width) for text in operands[1:])), lanes)

        return step

    return make


def _floats(operation: Callable[..., np.ndarray]):
    def make(match: re.Match, operands: list[str]) -> Step:
        def step(warp, lanes: Values) -> None:
            found = operation(*(warp.floats(text) for text in operands[1:]))
            warp.put(operands[0], found.astype(np.float32).view(np.uint32), lanes)

        return step

    return make


def _move(match: re.Match, operands: list[str]) -> Step:
    width = WIDTHS[match["type"]]
    to, source = operands

    def step(warp, lanes: Values) -> None:
        if source.startswith("{"):
            parts = [warp.value(name, 2).astype(np.uint32) for name in _names(source)]
            warp.put(to, parts[0] | parts[1] << np.uint32(16), lanes)
        elif to.startswith("{"):
            whole = warp.value(source, 4)
            for place, name in enumerate(_names(to)):
                warp.put(name, (whole >> np.uint32(16 * place)).astype(np.uint16), lanes)
        else:
            warp.put(to, warp.value(source, width), lanes)

    return step


def _select(match: re.Match, operands: list[str]) -> Step:
    width = WIDTHS[match["type"]]
    to, yes, no, chosen = operands
    return lambda warp, lanes: warp.put(
        to, np.where(warp.value(chosen, 1), warp.value(yes, width), warp.value(no, width)), lanes
    )


def _compare(match: re.Match, operands: list[str]) -> Step:
    kind, how = match["type"], match["how"]
    width, (to, left, right) = WIDTHS[kind], operands

    def step(warp, lanes: Values) -> None:
        read = warp.signed if kind[0] == "s" else warp.value
        a, b = (warp.floats(left), warp.floats(right)) if kind == "f32" else (read(left, width), read(right, width))
        unordered = kind == "f32" and len(how) == 3
        found = _COMPARED[how[:2]](a, b)
        if kind == "f32":
            nan = np.isnan(a) | np.isnan(b)
            found = found | nan if unordered else found & ~nan
        warp.put(to, found, lanes)

    return step


def _convert(match: re.Match, operands: list[str]) -> Step:
    to, source = match["to"], match["source"]

    def step(warp, lanes: Values) -> None:
        if to in ("f16x2", "bf16x2"):
            high, low = (_rounded(warp.floats(text), to[:-2]).astype(np.uint32) for text in operands[1:])
            found = high << np.uint32(16) | low
        elif source == "f32":
            found = _rounded(warp.floats(operands[1]), to)
        elif to == "f32":
            found = _widened(warp.value(operands[1], 2), source).view(np.uint32)
        else:
            read = warp.signed if source[0] == "s" else warp.value
            wide = read(operands[1], WIDTHS[source]).astype(
                np.dtype(f"i{WIDTHS[to]}" if source[0] == "s" else f"u{WIDTHS[to]}")
            )
            found = wide.view(np.dtype(f"u{WIDTHS[to]}"))
        warp.put(operands[0], found, lanes)

    return step


def _rounded(values: np.ndarray, kind: str) -> np.ndarray:
    """Return floats as the 16 bits of a narrower type, rounded to nearest even."""
    if kind == "f16":
        return values.astype(np.float16).view(np.uint16)
    bits = values.view(np.uint32)
    even = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
    return (
        np.where(np.isnan(values), np.uint32(0x7FFF0000), even)
        .astype(np.uint32)
        .__rshift__(np.uint32(16))
        .astype(np.uint16)
    )


def _widened(bits: np.ndarray, kind: str) -> np.ndarray:
    if kind == "f16":
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _multiply_wide(match: re.Match, operands: list[str]) -> Step:
    to, left, right = operands
    width, sign = WIDTHS[match["type"]], match["type"][0].replace("s", "i")
    wide, unsigned = np.dtype(f"{sign}{2 * width}"), np.dtype(f"u{2 * width}")

    def step(warp, lanes: Values) -> None:
        read = warp.signed if sign == "i" else warp.value
        warp.put(to, (read(left, width).astype(wide) * read(right, width).astype(wide)).view(unsigned), lanes)

    return step


def _permute(match: re.Match, operands: list[str]) -> Step:
    to, low, high, chosen = operands

    def step(warp, lanes: Values) -> None:
        whole = np.stack([warp.value(low, 4), warp.value(high, 4)], 1).view(np.uint8)  # (32, 8)
        digits = warp.value(chosen, 4)
        found = [whole[np.arange(LANES), (digits >> np.uint32(4 * place)) & np.uint32(7)] for place in range(4)]
        warp.put(to, np.stack(found, 1).copy().view(np.uint32)[:, 0], lanes)

    return step


def _shuffle(match: re.Match, operands: list[str]) -> Step:
    def step(warp, lanes: Values) -> None:
        warp.put(operands[0], warp.value(operands[1], 4)[warp.value(operands[2], 4)], lanes)

    return step


# ---- Memory ---------------------------------------------------------------------------------------------------------


def _load(match: re.Match, operands: list[str]) -> Step:
    space, count, width = match["space"], int(match["count"] or 1), WIDTHS[match["type"]]
    names, kind = _names(operands[0]), np.dtype(f"u{width}")

    def step(warp, lanes: Values) -> None:
        if space == "param":
            offset = int(operands[1].strip("[]").partition("+")[2] or 0)
            found = np.tile(warp.cta.parameter[offset : offset + width].copy(), (int(lanes.sum()), 1))
        elif space == "shared":
            found = warp.cta.shared[warp.cta.shared_at(warp.address(operands[1], 4)[lanes], count * width)]
        else:
            found = warp.cta.memory.read(warp.address(operands[1], 8)[lanes], count * width)
        parts = np.ascontiguousarray(found).view(kind)  # (lanes, count)
        for place, name in enumerate(names):
            whole = np.zeros(LANES, kind)
            whole[lanes] = parts[:, place]
            warp.put(name, whole, lanes)

    return step


def _store(match: re.Match, operands: list[str]) -> Step:
    space, count, width = match["space"], int(match["count"] or 1), WIDTHS[match["type"]]
    names = _names(operands[1])

    def step(warp, lanes: Values) -> None:
        parts = np.stack([warp.value(name, width)[lanes] for name in names], 1)
        moved = np.ascontiguousarray(parts).view(np.uint8)
        if space == "shared":
            warp.cta.shared[warp.cta.shared_at(warp.address(operands[0], 4)[lanes], count * width)] = moved
        else:
            warp.cta.memory.write(warp.address(operands[0], 8)[lanes], moved)

    return step


def _copy_async(match: re.Match, operands: list[str]) -> Step:
    target, source, width = operands[0], operands[1], int(operands[2])

    def step(warp, lanes: Values) -> None:
        targets, sources = warp.address(target, 4), warp.address(source, 8)
        read = warp.value(operands[3], 4) if len(operands) > 3 else np.full(LANES, width)
        for lane in np.flatnonzero(lanes):
            copy = Copy(
                int(lane), int(targets[lane]), int(sources[lane]), width, int(read[lane]), int(warp.commits[lane])
            )
            if warp.cta.late:
                warp.copies.append(copy)
            else:
                warp.cta.land(copy)

    return step


def _commit(match: re.Match, operands: list[str]) -> Step:
    def step(warp, lanes: Values) -> None:
        warp.commits[lanes] += 1

    return step


def _wait(match: re.Match, operands: list[str]) -> Step:
    return lambda warp, lanes: warp.land(np.where(lanes, warp.commits - int(operands[0]), 0))


# ---- Tensor cores ---------------------------------------------------------------------------------------------------


def _ldmatrix(match: re.Match, operands: list[str]) -> Step:
    count, transposed, names = int(match["count"]), bool(match["transposed"]), _names(operands[0])

    def step(warp, lanes: Values) -> None:
        addresses = warp.address(operands[1], 4)[: 8 * count]
        rows = warp.cta.shared[warp.cta.shared_at(addresses, 16)].view(np.uint16).reshape(count, 8, 8)
        for name, matrix in zip(names, rows.swapaxes(1, 2) if transposed else rows):
            warp.put(name, np.ascontiguousarray(matrix).view(np.uint32).reshape(LANES), lanes)

    return step


def _mma(match: re.Match, operands: list[str]) -> Step:
    inputs, sums = match["inputs"], match["sums"]
    to, a_names, b_names, c_names = map(_names, operands)
    lane = np.arange(LANES)
    group, within = lane // 4, lane % 4

    def unpacked(warp, names: list[str]) -> np.ndarray:
        words = np.stack([warp.value(name, 4) for name in names], 1)  # (32, registers)
        return _widened(words.view(np.uint16), inputs)  # (32, 2 * registers)

    def step(warp, lanes: Values) -> None:
        a, b = np.zeros((16, 16), np.float32), np.zeros((16, 8), np.float32)
        from_a, from_b = unpacked(warp, a_names), unpacked(warp, b_names)
        for register in range(4):
            for half in range(2):
                a[group + 8 * (register % 2), 2 * within + half + 8 * (register // 2)] = from_a[:, 2 * register + half]
        for register in range(2):
            for half in range(2):
                b[2 * within + half + 8 * register, group] = from_b[:, 2 * register + half]
        product = a.astype(np.float64) @ b.astype(np.float64)  # (16, 8)
        places = [(group + 8 * (e // 2), 2 * within + e % 2) for e in range(4)]
        if sums == "f32":
            for place, name, old in zip(places, to, c_names):
                warp.put(name, (product[place] + warp.floats(old)).astype(np.float32).view(np.uint32), lanes)
            return
        for pair, (name, old) in enumerate(zip(to, c_names)):
            before = _widened(warp.value(old, 4).reshape(LANES, 1).view(np.uint16), "f16")
            after = [product[places[2 * pair + half]] + before[:, half] for half in range(2)]
            warp.put(name, np.stack(after, 1).astype(np.float16).view(np.uint32)[:, 0], lanes)

    return step


def _shift(operation: Callable[[np.ndarray, np.ndarray], np.ndarray], signed: bool = False):
    def make(match: re.Match, operands: list[str]) -> Step:
        width = WIDTHS[match["type"]]

        def step(warp, lanes: Values) -> None:
            read = warp.signed if signed else warp.value
            value = read(operands[1], width)
            warp.put(operands[0], operation(value, warp.value(operands[2], 4).astype(value.dtype)), lanes)

        return step

    return make


def _fused(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    return a.astype(np.float64) * b + c


_INSTRUCTIONS: list[tuple[str, Callable[[re.Match, list[str]], Step]]] = [
    (r"mov\.(?P<type>pred|[bu]\d+|f32)", _move),
    (r"selp\.(?P<type>[bfus]\d+)", _select),
    (r"setp\.(?P<how>\w+)\.(?P<type>\w+)", _compare),
    (r"cvt(?:\.rn)?\.(?P<to>\w+)\.(?P<source>\w+)", _convert),
    (r"mul\.wide\.(?P<type>[su](?:16|32))", _multiply_wide),
    (r"mul\.hi\.(?P<type>u32)", _integers(lambda a, b: (a.astype(np.uint64) * b >> np.uint64(32)).astype(np.uint32))),
    (r"add\.(?P<type>[su]\d+)", _integers(np.add)),
    (r"sub\.(?P<type>[su]\d+)", _integers(np.subtract)),
    (r"neg\.(?P<type>[su]\d+)", _integers(np.negative, signed=True)),
    (r"mul\.lo\.(?P<type>[su]\d+)", _integers(np.multiply)),
    (r"mad\.lo\.(?P<type>[su]\d+)", _integers(lambda a, b, c: a * b + c)),
    (r"div\.(?P<type>u\d+)", _integers(np.floor_divide)),
    (r"rem\.(?P<type>u\d+)", _integers(np.remainder)),
    (r"min\.(?P<type>u\d+)", _integers(np.minimum)),
    (r"min\.(?P<type>s\d+)", _integers(np.minimum, signed=True)),
    (r"max\.(?P<type>s\d+)", _integers(np.maximum, signed=True)),
    (r"and\.(?P<type>pred|b\d+)", _integers(np.bitwise_and)),
    (r"or\.(?P<type>pred|b\d+)", _integers(np.bitwise_or)),
    (r"xor\.(?P<type>pred|b\d+)", _integers(np.bitwise_xor)),
    (r"not\.(?P<type>pred|b\d+)", _integers(np.invert)),
    (r"shl\.(?P<type>b\d+)", _shift(np.left_shift)),
    (r"shr\.(?P<type>[ub]\d+)", _shift(np.right_shift)),
    (r"shr\.(?P<type>s\d+)", _shift(np.right_shift, signed=True)),
    (r"prmt\.b32", _permute),
    (r"shfl\.sync\.idx\.b32", _shuffle),
    (r"add\.f32", _floats(np.add)),
    (r"sub\.f32", _floats(np.subtract)),
    (r"mul\.f32", _floats(np.multiply)),
    (r"div\.(?:rn|full|approx)\.f32", _floats(np.divide)),
    (r"fma\.rn\.f32", _floats(_fused)),
    (r"neg\.f32", _floats(np.negative)),
    (r"abs\.f32", _floats(np.abs)),
    (r"ex2\.approx(?:\.ftz)?\.f32", _floats(np.exp2)),
    (r"copysign\.f32", _floats(lambda sign, value: np.copysign(value, sign))),
    (r"(?:ld)\.(?P<space>param|global|shared)(?:\.v(?P<count>[24]))?\.(?P<type>[bu]\d+)", _load),
    (r"(?:st)\.(?P<space>global|shared)(?:\.v(?P<count>[24]))?\.(?P<type>[bu]\d+)", _store),
    (r"cp\.async\.c[ag]\.shared\.global", _copy_async),
    (r"cp\.async\.commit_group", _commit),
    (r"cp\.async\.wait_group", _wait),
    (r"ldmatrix\.sync\.aligned\.m8n8\.x(?P<count>[124])(?P<transposed>\.trans)?\.shared\.b16", _ldmatrix),
    (r"mma\.sync\.aligned\.m16n8k16\.row\.col\.(?P<sums>f32|f16)\.(?P<inputs>b?f16)\.\w+\.\w+", _mma),
]
