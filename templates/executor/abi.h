/* How a program runs a variant on the CPU: the C interface of the shared object that a variant's text is built into.
 *
 * Building. The executor is compiled once, each variant's emitted text by itself, unchanged:
 *
 *     c++ -std=c++17 -O2 -fPIC -fvisibility=hidden -I TEMPLATES -c TEMPLATES/executor/executor.cpp -o executor.o
 *     c++ -std=c++17 -O1 -fPIC -fvisibility=hidden -shared -DHGEMM_HOST -I TEMPLATES
 *         -DHGEMM_VARIANT_FILE='"/path/of/kernel.cu"' -DHGEMM_VARIANT=SYMBOL
 *         TEMPLATES/executor/variant.cpp executor.o -o variant.so
 *
 * Then `dlopen` it and call hgemm_emulate. The shared object keeps its state in globals: one call at a time in each (a second
 * one is refused), as many processes and shared objects as you like. A kernel that goes round the atoms may crash the process.
 *
 * What is filled with bytes 0xFF (HGEMM_POISON) is poison: a NaN that keeps its bits through the executor's arithmetic. Fill
 * padding, guard bands and D with it before a run; an element of D that depends on any of it is then a finding that says so.
 */
#ifndef HGEMM_EXECUTOR_ABI_H
#define HGEMM_EXECUTOR_ABI_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HGEMM_POISON 0xFF
#define HGEMM_ABI_VERSION 1

/* ---- Adversary --------------------------------------------------------------------------------------------------- */

/* When asynchronous work (copies, TMA, wgmma) takes effect: as late as the program allows, at once, or at any time between. */
enum hgemm_timing { HGEMM_LATE = 0, HGEMM_EARLY = 1, HGEMM_ANY_TIME = 2 };

/* Which warp runs next: all in turn; always the lowest that can, or the highest, which then runs as far ahead of the others as
 * the program allows; or any. The same holds for the CTAs among those that are resident, and for those that come next. */
enum hgemm_order { HGEMM_ROUND_ROBIN = 0, HGEMM_AHEAD_LOW = 1, HGEMM_AHEAD_HIGH = 2, HGEMM_ANY_ORDER = 3 };

/* ---- Global memory ----------------------------------------------------------------------------------------------- */

enum hgemm_region_flags {
  HGEMM_READABLE = 1,
  HGEMM_WRITABLE = 2,
  HGEMM_WRITE_ONCE = 4,       /* every element must be written exactly once by the launch: D */
  HGEMM_INITIALISED = 8,      /* holds values before the launch; otherwise a read needs a write before it */
  HGEMM_PADDING_READABLE = 16, /* reads may run on from a row into its padding, but not past the last row of all */
  HGEMM_MATRIX_READABLE = 32   /* reads may touch anything from a matrix's first byte to the last of its last row */
};

/* One matrix, or a batch of them, or a plain buffer (one row). Row r of matrix b begins at
 *     base + b * batch_stride_bytes + r * pitch_bytes
 * and has row_bytes bytes; what follows until the next row is padding. A batch stride of 0 is one matrix that serves all.
 * Matrices of a batch do not interleave. Regions may overlap where they are the same memory (C and D in place): an access is
 * legal if one of them allows it. What lies in no region belongs to nobody; a region ends with its last row's row_bytes. */
struct hgemm_region {
  char const *name; /* of findings: "A", "D" */
  void *base;
  uint64_t rows, row_bytes, pitch_bytes;
  uint64_t batches, batch_stride_bytes;
  uint32_t element_bytes;
  uint32_t flags;
};

/* ---- Tensor maps ------------------------------------------------------------------------------------------------- */

enum hgemm_swizzle { HGEMM_SWIZZLE_NONE = 0, HGEMM_SWIZZLE_32 = 1, HGEMM_SWIZZLE_64 = 2, HGEMM_SWIZZLE_128 = 3 };

/* What 128 bytes of CUtensorMap are to the host: put it where the kernel's parameter has its TensorMap. Dimension 0 is the
 * contiguous one; stride_bytes[i] is from one index of dimension i + 1 to the next. */
struct hgemm_tensor_map {
  uint64_t base; /* address */
  uint64_t extent[5];
  uint64_t stride_bytes[4];
  uint32_t box[5];
  uint32_t rank;
  uint32_t element_bytes;
  uint32_t swizzle; /* enum hgemm_swizzle */
  uint32_t magic;   /* HGEMM_TENSOR_MAP, so that a map nobody filled in is told apart */
  uint32_t reserved[3];
};
#define HGEMM_TENSOR_MAP 0x70616d74u

/* ---- Request ----------------------------------------------------------------------------------------------------- */

struct hgemm_emulation {
  uint32_t version; /* HGEMM_ABI_VERSION */
  uint32_t grid[3], cluster[3]; /* CTAs; 1 where there are no clusters */
  uint32_t threads;             /* of a CTA, a multiple of 32 */
  uint32_t shared_bytes;        /* dynamic shared memory of a CTA, at most 232448 */
  uint32_t registers; /* of a thread at launch, which setmaxnreg hands round; 0: all that a CTA alone on its SM can have */
  uint32_t resident_ctas; /* that live at once, whole clusters; 0: all of them, up to 64. 1 runs them one after another, which
                           * suffices where no CTA waits for another; races between CTAs are found in any case */
  uint32_t timing, order; /* enum hgemm_timing, enum hgemm_order */
  uint64_t seed;          /* of whatever is left to chance; the same seed replays the same run */
  uint64_t step_limit;    /* warp instructions after which the run is given up as endless; 0: 1e9 */
  uint32_t parameter_count;
  uint32_t region_count;
  void const *const *parameters;   /* as cuLaunchKernel takes them: the address of each; Problem first */
  uint64_t const *parameter_bytes; /* size of each, checked against the kernel's own */
  struct hgemm_region const *regions;
};

/* ---- Result ------------------------------------------------------------------------------------------------------ */

enum hgemm_emulate_status {
  HGEMM_EMULATED = 0,        /* the kernel ran, or was stopped by a finding: the report says */
  HGEMM_BAD_REQUEST = 1,     /* nothing ran: report_json is {"error": "..."} */
  HGEMM_REPORT_TOO_LONG = 2, /* it ran, and the report was cut off at the capacity: call again with more */
  HGEMM_BUSY = 3             /* another thread is inside this shared object; the report says so as that of a bad request does */
};

/* Runs one launch and writes its report, a NUL-terminated JSON object:
 *
 *   {"findings": [{"kind": "race", "count": 12, "message": "...", "file": "operand.cuh", "line": 140}, ...],
 *    "sites": [{"file": "operand.cuh", "line": 140, "kind": "cp_async", "space": "shared", "requests": 96, "wavefronts": 384,
 *               "ideal_wavefronts": 384, "sectors": 1536, "ideal_sectors": 1536, "bytes": 49152}, ...],
 *    "counters": {"mma_m16n8k16": 256, "cta_barrier": 20, "bytes_global_to_shared": 49152, ..., "steps": 4711}}
 *
 * No finding: the run is clean. One finding a kind and source line, the first one's message and how many there were.
 *
 *   bounds         an access outside its object: past a row, outside every region, outside shared memory, or not allowed there
 *   alignment      an address that is no multiple of what its access needs
 *   uninitialised  a read of memory that nothing has written
 *   poison         an element of D that depends on poison: memory never written, in flight, padding, or a register never set
 *   race           two accesses of the same bytes, one a write, that no synchronisation puts in order; "in flight" is one kind
 *   proxy          writes through the generic proxy that the async proxy (TMA store, wgmma) reads without a proxy fence
 *   write_once     an element of D written twice, or never
 *   deadlock       nothing can run: the message says where each warp waits and for what
 *   divergence     a collective (mma, ldmatrix, barrier) that some lanes or threads never reach, or reach with other operands
 *   pending        a thread ends with copies in flight, or a CTA while others still write into its shared memory
 *   mbarrier, wgmma, tma, setmaxnreg, cluster     an instruction of these used against its rules
 *   launch         global memory touched before previous launches have ended, by one that lets the next one begin early
 *   endless        the step limit was reached
 *
 * `space` is "shared", "global" or "both" (a copy from one to the other). Counters of sites add up all warp instructions of
 * that line; a wavefront is one pass of shared memory, a sector 32 bytes of global memory. Bytes are those that arrive: of a
 * multicast those of all receivers. "wgmma_m64n256k16" and the like count instructions of a warpgroup, "mma_..." of a warp. */
#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
int hgemm_emulate(struct hgemm_emulation const *request, char *report_json, size_t capacity);

#ifdef __cplusplus
}
#endif

#endif /* HGEMM_EXECUTOR_ABI_H */
