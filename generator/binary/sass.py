"""Disassemble machine code with NVIDIA's own disassembler, several kernels in one call.

nvdisasm takes 0.16 s to build its tables and 7 ms a kernel of 760 instructions, and reads one file. So the code of all
kernels of an architecture goes into one raw image, which lists the same as the cubins would (tests/test_sass.py).
"""

from __future__ import annotations

import importlib.util
import itertools
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from generator.errors import HgemmError

INSTRUCTION_BYTES = 16
_TIME_LIMIT_S = 120
_LINE = re.compile(r"^\s*/\*([0-9a-f]+)\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*([^;\n]*?)\s*;", re.MULTILINE)
_BAD_ADDRESS = re.compile(r"at address (0x[0-9a-f]+)")
_JUMPS = frozenset(("BRA", "BSSY", "CALL", "RET"))
_TARGET = re.compile(r"(?<![\w\[-])0x[0-9a-f]+$")
_WIDTH = re.compile(r"(?<=\.)(?:[US]?8|[US]?16|64|128)(?=\.|$)")
_BYTES_OF_WIDTH = {"8": 1, "U8": 1, "S8": 1, "16": 2, "U16": 2, "S16": 2, "64": 8, "128": 16}


@dataclass(frozen=True)
class Code:
    """The machine code of one kernel and the architecture that it is for: `sm_89`."""

    arch: str
    text: bytes


class Instruction(NamedTuple):
    """One instruction: `@!P0 LDSM.16.M88.4 R4, [R2]` has predicate `!P0` and mnemonic `LDSM`."""

    address_bytes: int
    opcode: str
    predicate: str
    operands: str

    @property
    def mnemonic(self) -> str:
        """The opcode without its modifiers."""
        return self.opcode.partition(".")[0]

    @property
    def is_branch(self) -> bool:
        return self.mnemonic == "BRA"


@dataclass(frozen=True)
class Listing:
    """The instructions of one kernel, in the order of their addresses."""

    instructions: tuple[Instruction, ...]

    def counts(self) -> dict[str, int]:
        """Count the instructions by mnemonic: {'HMMA': 64, ...}, by name."""
        return dict(sorted(Counter(instruction.mnemonic for instruction in self.instructions).items()))

    def opcode_counts(self) -> dict[str, int]:
        """Count the instructions by full opcode: {'HMMA.16816.F32': 64, ...}, by name."""
        return dict(sorted(Counter(instruction.opcode for instruction in self.instructions).items()))

    def bytes_moved(self, mnemonic: str) -> int:
        """Sum what the loads or stores of one kind move for a thread, each counted once: STL.64 moves 8."""
        found = (instruction for instruction in self.instructions if instruction.mnemonic == mnemonic)
        return sum(_BYTES_OF_WIDTH[width[0]] if (width := _WIDTH.search(i.opcode)) else 4 for i in found)

    def loop_of(self, mnemonic: str) -> tuple[Instruction, ...]:
        """Return the shortest loop, from where a branch backwards leads to that branch, that has such an instruction."""
        at = {instruction.address_bytes: place for place, instruction in enumerate(self.instructions)}
        ends = (
            (place, _TARGET.search(each.operands)) for place, each in enumerate(self.instructions) if each.is_branch
        )
        stretches = (self.instructions[at[int(target[0], 16)] : place + 1] for place, target in ends if target)
        loops = (found for found in stretches if any(each.mnemonic == mnemonic for each in found))
        return min(loops, key=len, default=())

    def text(self) -> str:
        """Write the listing, one instruction a line, for reading."""
        return "".join(_line(instruction) for instruction in self.instructions)


def find_nvdisasm(folders: Sequence[Path] = ()) -> Path:
    """Find nvdisasm in the installed wheel, else in `folders` (those of PATH, CUDA's bin), in that order.

    Raises: HgemmError, saying what to install, where there is none.
    """
    package = importlib.util.find_spec("nvidia")
    roots = package.submodule_search_locations if package and package.submodule_search_locations else ()
    wheels = [path for root in roots for path in sorted(Path(root).glob("*/bin/nvdisasm*"), reverse=True)]
    others = [folder / name for folder in folders for name in ("nvdisasm", "nvdisasm.exe")]
    for path in (*wheels, *others):
        if path.stem == "nvdisasm" and path.is_file():
            return path
    raise HgemmError("nvdisasm is not installed: pip install nvidia-cuda-nvdisasm")


def disassemble(codes: Sequence[Code], nvdisasm: Path | None = None) -> list[Listing]:
    """Disassemble kernels, in the order given, with one process an architecture, all at once.

    Raises: HgemmError where nvdisasm is missing, fails, or meets what is no instruction (with kernel and address).
    """
    listings: dict[int, Listing] = {}
    batches: dict[str, list[int]] = {}
    for index, code in enumerate(codes):
        if len(code.text) % INSTRUCTION_BYTES:
            raise HgemmError(f"code {index} of {code.arch} has {len(code.text)} B: not whole instructions of 16 B")
        batches.setdefault(code.arch, []).append(index)
    images = {arch: b"".join(codes[index].text for index in indices) for arch, indices in batches.items()}
    outputs = _run({arch: image for arch, image in images.items() if image}, nvdisasm)
    for arch, indices in batches.items():
        sizes = {index: len(codes[index].text) for index in indices}
        listings.update(_split(arch, sizes, *outputs.get(arch, ("", ""))))
    return [listings[index] for index in range(len(codes))]


def _run(images: dict[str, bytes], nvdisasm: Path | None) -> dict[str, tuple[str, str]]:
    """Return what nvdisasm wrote and complained of for each architecture's image."""
    if not images:
        return {}
    program = nvdisasm or find_nvdisasm()
    outputs = {}
    try:
        with tempfile.TemporaryDirectory(prefix="hgemm-sass-") as folder:
            running = {arch: _start(program, arch, image, Path(folder)) for arch, image in images.items()}
            try:
                for arch, process in running.items():
                    _, err = process.communicate(timeout=_TIME_LIMIT_S)
                    outputs[arch] = ((Path(folder) / f"{arch}.out").read_text(), err.decode(errors="replace"))
            finally:
                for process in running.values():
                    process.kill()
                    process.wait()
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HgemmError(f"nvdisasm cannot be run ({error}): try {program} --version") from error
    return outputs


def _start(program: Path, arch: str, image: bytes, folder: Path) -> subprocess.Popen[bytes]:
    path = folder / f"{arch}.bin"
    path.write_bytes(image)
    command = [str(program), "--binary", arch.replace("sm_", "SM"), str(path)]
    with open(folder / f"{arch}.out", "wb") as out:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE)


def _split(arch: str, sizes: dict[int, int], out: str, err: str) -> dict[int, Listing]:
    """Give each kernel its part of an architecture's listing, with addresses from 0."""
    _refuse_bad_code(arch, sizes, err)
    found = _instructions(out)
    base_bytes, listings = 0, {}
    for index, size_bytes in sizes.items():
        length = size_bytes // INSTRUCTION_BYTES
        part = tuple(_moved(instruction, base_bytes) for instruction in itertools.islice(found, length))
        if len(part) != length:
            told = (err.strip().splitlines() or ["no complaint"])[0]
            raise HgemmError(f"nvdisasm listed {len(part)} of {length} instructions of code {index}: {told}")
        listings[index] = Listing(part)
        base_bytes += size_bytes
    return listings


def _refuse_bad_code(arch: str, sizes: dict[int, int], err: str) -> None:
    """Name the kernel in which nvdisasm met what it does not know."""
    bad = _BAD_ADDRESS.search(err)
    offset = int(bad[1], 16) if bad else 0
    for index, size_bytes in sizes.items() if bad else ():
        if offset < size_bytes:
            raise HgemmError(f"code {index} of {arch} has no instruction at {offset:#x}: is it built for {arch}?")
        offset -= size_bytes


def _instructions(out: str) -> Iterator[Instruction]:
    for match in _LINE.finditer(out):
        yield Instruction(int(match[1], 16), match[3], match[2] or "", match[4])


def _moved(instruction: Instruction, base_bytes: int) -> Instruction:
    """Take the place in the image off an instruction's address and off the address that it jumps to."""
    if not base_bytes:
        return instruction
    operands = instruction.operands
    if instruction.mnemonic in _JUMPS and ".ABS" not in instruction.opcode:
        operands = _TARGET.sub(lambda match: f"{int(match[0], 16) - base_bytes:#x}", operands)
    return instruction._replace(address_bytes=instruction.address_bytes - base_bytes, operands=operands)


def _line(instruction: Instruction) -> str:
    guard = f"@{instruction.predicate} " if instruction.predicate else ""
    text = f"/*{instruction.address_bytes:04x}*/ {guard:>6}{instruction.opcode} {instruction.operands}"
    return f"{text.rstrip()} ;\n"
