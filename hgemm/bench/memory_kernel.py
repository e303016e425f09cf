"""The memory-bound kernel that runs between products in the state `model`, as norms and activations do in a transformer."""

from __future__ import annotations

import ctypes

from hgemm.bench.device import Launch, Stream
from hgemm.bench.operands import Pool
from hgemm.bench.work import Work
from hgemm.device import checked, driver
from hgemm.dtypes import DTYPES, VECTOR_BYTES

THREADS, CTAS_PER_SM = 256, 4
BUFFERS = 2
"""The kernel reads both buffers and writes one."""
MOVES = BUFFERS + 1

# y ^= x keeps random bits random, so the memory's power stays that of random data.
PTX = b"""
.version 6.4
.target sm_75
.address_size 64

.visible .entry hgemm_memory_kernel(.param .u64 source, .param .u64 target, .param .u32 vectors)
{
  .reg .pred %more;
  .reg .b32 %cta, %threads, %thread, %index, %step, %vectors, %x<4>, %y<4>;
  .reg .b64 %source, %target, %offset, %from, %to;

  ld.param.u64 %source, [source];
  ld.param.u64 %target, [target];
  ld.param.u32 %vectors, [vectors];
  cvta.to.global.u64 %source, %source;
  cvta.to.global.u64 %target, %target;
  mov.u32 %cta, %ctaid.x;
  mov.u32 %threads, %ntid.x;
  mov.u32 %thread, %tid.x;
  mad.lo.u32 %index, %cta, %threads, %thread;
  mov.u32 %step, %nctaid.x;
  mul.lo.u32 %step, %step, %threads;
  setp.ge.u32 %more, %index, %vectors;
  @%more bra DONE;
LOOP:
  mul.wide.u32 %offset, %index, 16;
  add.u64 %from, %source, %offset;
  add.u64 %to, %target, %offset;
  ld.global.v4.b32 {%x0, %x1, %x2, %x3}, [%from];
  ld.global.v4.b32 {%y0, %y1, %y2, %y3}, [%to];
  xor.b32 %y0, %y0, %x0;
  xor.b32 %y1, %y1, %x1;
  xor.b32 %y2, %y2, %x2;
  xor.b32 %y3, %y3, %x3;
  st.global.v4.b32 [%to], {%y0, %y1, %y2, %y3};
  add.u32 %index, %index, %step;
  setp.lt.u32 %more, %index, %vectors;
  @%more bra LOOP;
DONE:
  ret;
}
\0"""


def moved_bytes(work: Work, duty: float) -> int:
    """Return the bytes that the kernel moves beside one product: `duty` times those of A and D, the activations."""
    a_bytes, d_bytes = DTYPES[work.dtype_a].bytes, DTYPES[work.dtype_d].bytes
    return int(duty * work.batch * work.m * (work.k * a_bytes + work.n * d_bytes))


class MemoryKernel:
    """A kernel that reads and writes as many bytes as the memory-bound kernels between two products.

    Units: `size_bytes` is all that one launch reads and writes.
    """

    def __init__(self, stream: Stream, pool: Pool, size_bytes: int) -> None:
        self.stream, device = stream, stream.device
        vectors = max(1, size_bytes // (MOVES * VECTOR_BYTES))
        self.size_bytes = vectors * MOVES * VECTOR_BYTES
        self.memory = device.allocate(BUFFERS * vectors * VECTOR_BYTES)
        pool.fill(self.memory, BUFFERS * vectors * VECTOR_BYTES // pool.item)
        self._module = checked(driver().cuModuleLoadData(PTX), "load the memory-bound kernel")
        function = checked(driver().cuModuleGetFunction(self._module, b"hgemm_memory_kernel"), "find it")
        ctas = max(1, min(-(-vectors // THREADS), CTAS_PER_SM * device.sms))
        values = (self.memory, self.memory + vectors * VECTOR_BYTES, vectors)
        arguments = (values, (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32))
        self._launch = lambda: checked(
            driver().cuLaunchKernel(function, ctas, 1, 1, THREADS, 1, 1, 0, stream.stream, arguments, 0),
            "launch the memory-bound kernel",
        )

    @property
    def launch(self) -> Launch:
        """The function that launches the kernel once on the stream."""
        return self._launch

    def free(self) -> None:
        checked(driver().cuModuleUnload(self._module), "unload the memory-bound kernel")
        self.stream.device.free(self.memory)
