"""Run kernels on the CPU in a process of their own, which gets inputs, returns outputs, and can do little else.

The process (templates/executor/runner.cpp) and this one share the memory of the arrays, at the same addresses. This process
writes the operands and compares the results with its own copies. So a kernel can spoil its results, and nothing else.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import mmap
import os
import secrets
import select
import struct
import subprocess
from collections import defaultdict
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from generator.isolated import NEUTRAL_FOLDER
from generator.proof.executor import REPORT_BYTES, TOO_LONG, Executable, Finding, Site
from generator.ptx.translate import FUNCTION
from hgemm.errors import DeviceError

# ==== The memory that both processes share ====

ARENA_ADDRESS = 0x2000_0000_0000
"""Far from where Linux puts programs, shared objects, stacks, and the shadow of sanitizers."""
ARENA_BYTES = 32 << 40
"""Only pages that are written take memory."""
_ALIGN_BYTES = 4096
_KEPT_BYTES = 64 << 20
"""The pages of larger blocks are returned to the system when they are freed."""
_MAP_NORESERVE, _MAP_FIXED_NOREPLACE, _MADV_REMOVE = 0x4000, 0x100000, 9
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW if hasattr(fcntl, "F_SEAL_SEAL") else 0
"""The other process cannot change the size of the memory under this one."""


class Arena:
    """Addresses that this process and the processes of kernels map to the same memory."""

    def __init__(self) -> None:
        """Raises: DeviceError if the system does not have so many addresses."""
        libc = ctypes.CDLL(None, use_errno=True)
        self._madvise = libc.madvise
        self._madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        if not hasattr(os, "memfd_create"):
            raise DeviceError("running kernels on the CPU needs Linux: verify them on a GPU")
        self.descriptor = os.memfd_create("hgemm", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        flags = mmap.MAP_SHARED | _MAP_NORESERVE | _MAP_FIXED_NOREPLACE
        try:
            os.ftruncate(self.descriptor, ARENA_BYTES)
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _SEALS)
            found = libc.mmap(ARENA_ADDRESS, ARENA_BYTES, mmap.PROT_READ | mmap.PROT_WRITE, flags, self.descriptor, 0)
            if found != ARENA_ADDRESS:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        except OSError as error:
            os.close(self.descriptor)
            raise DeviceError(
                f"cannot reserve {ARENA_BYTES >> 30} GiB of addresses ({error}): allow more address space (ulimit -v)"
            ) from error
        self._next = ARENA_ADDRESS
        self._free: dict[int, list[int]] = defaultdict(list)
        self._sizes: dict[int, int] = {}

    def allocate(self, size_bytes: int) -> int:
        """Return the address of a block, whose content is arbitrary. Raises: DeviceError if it does not fit."""
        size_bytes = max(_ALIGN_BYTES, 1 << max(0, size_bytes - 1).bit_length())
        if self._free[size_bytes]:
            address = self._free[size_bytes].pop()
        elif self._next + size_bytes > ARENA_ADDRESS + ARENA_BYTES:
            raise DeviceError(f"{size_bytes >> 30} GiB exceed the {ARENA_BYTES >> 30} GiB for arrays: use smaller ones")
        else:
            address = self._next
            self._next += size_bytes
        self._sizes[address] = size_bytes
        return address

    def free(self, address: int) -> None:
        size_bytes = self._sizes.pop(address)
        if size_bytes > _KEPT_BYTES:
            self._madvise(address, size_bytes, _MADV_REMOVE)
        self._free[size_bytes].append(address)


@cache
def arena() -> Arena:
    """Return the arena of this process, made at the first call."""
    return Arena()


# ==== A kernel in its process ====

MAX_RESIDENT_BYTES = 1 << 30
"""A process that uses more memory is killed. Proofs of the catalog use less than a tenth."""
_POLL_S = 0.05
_HEAD, _ANSWER = struct.Struct("<QQ"), struct.Struct("<QiI")
_PAGE_BYTES = mmap.PAGESIZE
_SEARCH_PATH = "LD_LIBRARY_PATH"


class SandboxedExecutable(Executable):
    """A kernel that runs on the CPU, in a process of its own. It sees the memory of the arena.

    Raises: OSError if the shared object cannot be loaded. `run` raises DeviceError if the process ends or answers with nonsense.
    """

    def __init__(self, path: Path, runner: Path, ptx: str = "", function: str = FUNCTION) -> None:
        self._ptx = ptx
        memory = arena().descriptor
        words = [str(runner), str(path), function, str(memory), str(ARENA_ADDRESS), str(ARENA_BYTES)]
        found = os.environ.get(_SEARCH_PATH)  # of the compiler's own libraries
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            words,
            stdin=pipe,
            stdout=pipe,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env={_SEARCH_PATH: found} if found else {},
            cwd=NEUTRAL_FOLDER,
            pass_fds=[memory],
        )
        status, text = self._ask(b"")
        if status:
            self.close()
            raise OSError(text.decode(errors="replace")[:1000])

    def close(self) -> None:
        """End the process."""
        with suppress(OSError):
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                stream.close()

    def __del__(self) -> None:
        if hasattr(self, "_process"):
            self.close()

    def _emulate(self, request: Any) -> tuple[int, dict]:
        """Send a request, and return the status and the report, which is well formed."""
        count, regions = request.parameter_count, [request.regions[i] for i in range(request.region_count)]
        sizes = [request.parameter_bytes[i] for i in range(count)]
        parameters = [ctypes.string_at(request.parameters[i], size) for i, size in enumerate(sizes)]
        names = [region.name for region in regions]
        counts = struct.pack(f"<{count + len(names)}Q", *sizes, *map(len, names))
        body = b"".join([bytes(request), counts, *map(bytes, regions), *parameters, *names])
        status, report = self._ask(body)
        if status == TOO_LONG or len(report) >= REPORT_BYTES:
            raise DeviceError(f"the report of the executor exceeds {REPORT_BYTES} B")
        try:
            document = json.loads(report)
            require_well_formed(document)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            self.close()
            raise DeviceError(f"the process of the kernel answers with nonsense ({error})") from error
        return status, document

    def _ask(self, body: bytes) -> tuple[int, bytes]:
        """Send a request and return the status and the text of the answer. Raises: DeviceError if the process ends."""
        nonce = secrets.randbits(64)
        try:
            self._process.stdin.write(_HEAD.pack(nonce, len(body)) + body)
        except OSError:
            raise DeviceError(self._end()) from None
        known, status, size = _ANSWER.unpack(self._received(_ANSWER.size))
        if known != nonce or size > REPORT_BYTES:
            self.close()
            raise DeviceError("the process of the kernel answers out of turn")
        return status, self._received(size)

    def _received(self, size_bytes: int) -> bytes:
        """Return the next bytes of the answer, and watch the memory of the process meanwhile."""
        found, source = bytearray(), self._process.stdout
        while len(found) < size_bytes:
            ready, _, _ = select.select([source], [], [], _POLL_S)
            if not ready:
                self._require_little_memory()
                continue
            part = source.read(size_bytes - len(found))
            if not part:
                raise DeviceError(self._end())
            found += part
        return bytes(found)

    def _require_little_memory(self) -> None:
        try:
            resident = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * _PAGE_BYTES
        except (OSError, IndexError, ValueError):
            return
        if resident > MAX_RESIDENT_BYTES:
            self.close()
            raise DeviceError(f"its process takes more than {MAX_RESIDENT_BYTES >> 20} MiB of memory and was killed")

    def _end(self) -> str:
        """Return how the process ended."""
        self.close()
        return f"its process ended with status {self._process.returncode}"


_TYPES = {"int": int, "str": str}
_REJECTED = "error"


def require_well_formed(document: dict) -> None:
    """Raise TypeError or LookupError if a part of a report is missing or not of its type, or a text is not printable."""
    if _REJECTED in document:
        _require(_REJECTED, document[_REJECTED], "str")
        return
    for kind, name in ((Finding, "findings"), (Site, "sites")):
        fields = kind.__annotations__
        types = [_TYPES[word] for word in fields.values()]
        texts = [field for field, word in fields.items() if word == "str"]
        for item in document[name]:  # there are many sites, so all fields are checked at once
            if [type(item[field]) for field in fields] == types and "".join(
                [item[text] for text in texts]
            ).isprintable():
                continue
            for field, word in fields.items():
                _require(field, item[field], word)
    for name, count in document["counters"].items():
        _require("counter", name, "str")
        _require("counter", count, "int")
    _require("predicates", document["predicates"], "str")
    if set(document["predicates"]) - set("0123"):
        raise TypeError("predicates are not digits from 0 to 3")


def _require(name: str, value: object, kind: str) -> None:
    if type(value) is not _TYPES[kind] or (kind == "str" and not value.isprintable()):
        raise TypeError(f"{name} is not a printable {kind}")
