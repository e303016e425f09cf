"""A variant ready for one geometry: only addresses and the stream are left to be given, and a call does little else."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from dataclasses import replace

from hgemm.checks import check
from hgemm.device import checked, driver, open_device
from hgemm.kernel import Kernel
from hgemm.launch import counter_bytes, grid_x, workspace_bytes
from hgemm.matrices import matrices
from hgemm.problem import PROBLEM_BYTES, Problem
from hgemm.tensor_maps import MAP_BYTES, OPERANDS, encoders

Addresses = tuple[int, ...]
_NAMES = ("a", "b", "c", "d", "bias", "workspace")
_ADDRESSES = struct.Struct("<6Q")
"""The first fields of a packed problem, in the order of _NAMES."""
MAX_ENCODED = 1024
"""Addresses of an operand whose tensor maps are kept."""


class Launcher:
    """A variant on a device, for problems that differ from the given one in their addresses only; threads may share it.

    The addresses must be as well aligned as the given problem's. Raises: ProblemError or DeviceError, as Kernel.bind does.
    """

    def __init__(self, kernel: Kernel, problem: Problem, device: int = 0, workspace_size: int | None = None) -> None:
        self.kernel, self.problem, self.ordinal, self.workspace_size = kernel, problem, device, workspace_size
        facts = kernel.facts
        check(problem, facts, workspace_size)
        self._function = kernel.prepare(device)
        self._device = open_device(device)
        self._grid = grid_x(facts, problem.m, problem.n, problem.batch, self._function.resident_ctas)
        self._counter_bytes = counter_bytes(facts, problem.m, problem.n, problem.batch)
        self._packed = kernel.parameter(problem)
        self._encoders = encoders(facts, problem, device) if facts.tensor_maps else ()
        self._encoded: tuple[dict[int, bytes], ...] = tuple({} for _ in OPERANDS)
        spans = {name: place.end - place.pointer for name, place in matrices(problem, facts).items()}
        self._a_bytes, self._b_bytes, self._c_bytes, self._d_bytes, self._bias_bytes = (
            spans.get(name, 0) for name in ("A", "B", "C", "D", "bias")
        )
        self._c_may_be_d = (problem.ldc, problem.batch_stride_c) == (problem.ldd, problem.batch_stride_d)
        self._works = workspace_bytes(facts, problem.m, problem.n, problem.batch) > 0
        self._free: list[_Slot] = []
        bindings = driver()
        self._handle, self._context = self._function.handle, self._device.context
        self._current_context, self._launch_kernel = bindings.cuCtxGetCurrent, bindings.cuLaunchKernelEx

    def launch(self, addresses: Addresses, stream: int) -> None:
        """Launch on a stream, without waiting. Raises ProblemError where D overlaps what is read, or DeviceError."""
        try:
            slot = self._free.pop()  # no other thread has it until it is put back
        except IndexError:
            config = self._device.config(self.kernel.facts, self._grid, stream)
            slot = _Slot(self._packed, config, stream, bool(self._encoders))
        if slot.addresses != addresses:
            self._write(slot, addresses)
        if slot.stream != stream:
            slot.config.hStream = driver().CUstream(stream)
            slot.stream = stream
        if self._counter_bytes or self._current_context()[1] != self._context:
            status = self._launch_elsewhere(slot)
        else:
            (status,) = self._launch_kernel(slot.config, self._handle, slot.address, 0)
        self._free.append(slot)
        if status:
            checked((status,), f"launch {self.kernel.facts.symbol}")

    def _write(self, slot: _Slot, addresses: Addresses) -> None:
        """Write addresses into the parameters of a launch, those of tensor maps too, if they may be used together."""
        a, b, c, d, bias, _ = addresses
        end = d + self._d_bytes
        if (
            (a < end and d < a + self._a_bytes)
            or (b < end and d < b + self._b_bytes)
            or (c < end and d < c + self._c_bytes and not (c == d and self._c_may_be_d))
            or (bias < end and d < bias + self._bias_bytes)
            or self._works
        ):  # D may still lie between the rows of another
            given = replace(self.problem, **dict(zip(_NAMES, addresses)))
            check(given, self.kernel.facts, self.workspace_size)
        _ADDRESSES.pack_into(slot.problem, 0, *addresses)
        if self._encoders:
            known_a, known_b, known_d = self._encoded
            try:
                slot.maps.raw = known_a[a] + known_b[b] + known_d[d]
            except KeyError:
                slot.maps.raw = b"".join(map(self._map, self._encoded, self._encoders, (a, b, d)))
        slot.addresses = addresses

    def _launch_elsewhere(self, slot: _Slot) -> object:
        """Launch where the device's context is not known to be current, or where counters are to be zeroed."""
        with self._device.current():
            if self._counter_bytes:
                done = driver().cuMemsetD8Async(slot.addresses[-1], 0, self._counter_bytes, slot.config.hStream)
                checked(done, "zero the counters")
            return self._launch_kernel(slot.config, self._handle, slot.address, 0)[0]

    @staticmethod
    def _map(known: dict[int, bytes], encode: Callable[[int], bytes], address: int) -> bytes:
        found = known.get(address)
        if found is None:
            if len(known) >= MAX_ENCODED:
                known.clear()
            found = known[address] = encode(address)
        return found


class _Slot:
    """The parameters and the description of one launch, for one thread at a time."""

    def __init__(self, packed: bytes, config: object, stream: int, maps: bool) -> None:
        self.config, self.stream = config, stream
        self.problem = (ctypes.c_char * PROBLEM_BYTES).from_buffer_copy(packed)
        self.maps = ctypes.create_string_buffer(MAP_BYTES * len(OPERANDS))
        self.addresses: Addresses = ()
        parameters = [ctypes.addressof(self.problem), *([ctypes.addressof(self.maps)] if maps else [])]
        self._parameters = (ctypes.c_void_p * len(parameters))(*parameters)
        self.address = ctypes.addressof(self._parameters)
