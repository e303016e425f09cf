/* The C interface of the CPU executor: how a program runs a kernel on the CPU.
 *
 * Build the executor once. Then translate the PTX of each kernel to C++ (`generator.ptx.translate`), and build it into a shared
 * object of its own:
 *
 *     c++ -std=c++17 -O2 -fPIC -fvisibility=hidden -I TEMPLATES -c TEMPLATES/executor/executor.cpp -o executor.o
 *     c++ -std=c++17 -O1 -fPIC -fvisibility=hidden -fwrapv -shared -I TEMPLATES kernel.cpp executor.o -o kernel.so
 *
 * Load it with `dlopen` and call hgemm_emulate. A shared object keeps its state in globals, so it runs one call at a time; a
 * second concurrent call fails. Several processes or shared objects can run in parallel.
 *
 * Memory filled with 0xFF bytes (HGEMM_POISON) is poison: a NaN that keeps its bits through the executor's arithmetic. Fill
 * padding, guard bands and D with it before a run. The report then names each element of D that depends on poison.
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

/* The adversary makes every choice that the CUDA programming model leaves open, so that different runs expose different bugs.
 *
 * Timing: when asynchronous work (cp.async, TMA, wgmma) takes effect. Late: at the last moment that the program allows. Early:
 * at once. Any time: at a random moment between. */
enum hgemm_timing { HGEMM_LATE = 0, HGEMM_EARLY = 1, HGEMM_ANY_TIME = 2 };

/* Order: which warp runs next. Round robin: each in turn. Ahead low, ahead high: always the lowest or highest warp that can
 * run, so that it gets as far ahead of the others as the program allows. Any order: a random warp. Resident CTAs, and the CTA
 * that starts next, are chosen in the same way. */
enum hgemm_order { HGEMM_ROUND_ROBIN = 0, HGEMM_AHEAD_LOW = 1, HGEMM_AHEAD_HIGH = 2, HGEMM_ANY_ORDER = 3 };

/* ---- Global memory ----------------------------------------------------------------------------------------------- */

enum hgemm_region_flags {
  HGEMM_READABLE = 1,
  HGEMM_WRITABLE = 2,
  HGEMM_WRITE_ONCE = 4,        /* the launch must write every element exactly once (D) */
  HGEMM_INITIALISED = 8,       /* holds values before the launch; otherwise it must be written before it is read */
  HGEMM_PADDING_READABLE = 16, /* reads may extend from a row into its padding, but not past the last row */
  HGEMM_MATRIX_READABLE = 32   /* reads may access any byte from the first to the last element of a matrix */
};

/* A matrix, a batch of matrices, or a plain buffer (one row). Row r of matrix b begins at
 *     base + b * batch_stride_bytes + r * pitch_bytes
 * and has row_bytes bytes. The bytes up to the next row are padding. With a batch stride of 0, the whole batch uses one matrix.
 * Matrices of a batch must not interleave. Regions may overlap if they are the same memory (C and D in place); an access is
 * legal if one region allows it. An access outside all regions is a finding. A region ends with its last row, without
 * padding. */
struct hgemm_region {
  char const *name; /* used in findings, such as "A" or "D" */
  void *base;
  uint64_t rows, row_bytes, pitch_bytes;
  uint64_t batches, batch_stride_bytes;
  uint32_t element_bytes;
  uint32_t flags;
};

/* ---- Tensor maps ------------------------------------------------------------------------------------------------- */

enum hgemm_swizzle { HGEMM_SWIZZLE_NONE = 0, HGEMM_SWIZZLE_32 = 1, HGEMM_SWIZZLE_64 = 2, HGEMM_SWIZZLE_128 = 3 };

/* The executor's version of CUtensorMap, also 128 bytes. Store it in the kernel's TensorMap parameter. Dimension 0 is
 * contiguous. stride_bytes[i] is the stride of dimension i + 1. */
struct hgemm_tensor_map {
  uint64_t base; /* address */
  uint64_t extent[5];
  uint64_t stride_bytes[4];
  uint32_t box[5];
  uint32_t rank;
  uint32_t element_bytes;
  uint32_t swizzle; /* enum hgemm_swizzle */
  uint32_t magic;   /* HGEMM_TENSOR_MAP; detects maps that were not filled in */
  uint32_t reserved[3];
};
#define HGEMM_TENSOR_MAP 0x70616d74u

/* ---- Request ----------------------------------------------------------------------------------------------------- */

struct hgemm_emulation {
  uint32_t version; /* HGEMM_ABI_VERSION */
  uint32_t grid[3], cluster[3]; /* CTAs; cluster is 1, 1, 1 without clusters */
  uint32_t threads;             /* per CTA, a multiple of 32 */
  uint32_t shared_bytes;        /* dynamic shared memory per CTA, at most 232448 */
  uint32_t registers; /* per thread at launch, redistributed by setmaxnreg; 0: the maximum of a CTA that is alone on its SM */
  uint32_t resident_ctas; /* CTAs that run at the same time, in whole clusters; 0: all of them, up to 64. 1 is enough if no CTA
                           * waits for another one. Races between CTAs are found in any case. */
  uint32_t timing, order; /* enum hgemm_timing, enum hgemm_order */
  uint32_t programmatic;  /* 1: the launch may begin before the previous ones end, as with programmatic stream serialization */
  uint32_t arch;          /* the GPU, such as 89 for sm_89: its tensor cores' arithmetic; 0: 90 */
  uint64_t seed;          /* of the random choices; the same seed repeats the same run */
  uint64_t step_limit;    /* warp instructions after which the run stops as endless; 0: 1e9 */
  uint32_t parameter_count;
  uint32_t region_count;
  void const *const *parameters;   /* the address of each, as for cuLaunchKernel; Problem is first */
  uint64_t const *parameter_bytes; /* size of each; must match the kernel's */
  struct hgemm_region const *regions;
  uint32_t block[3]; /* threads of a CTA in each dimension, whose product is `threads`; 0, 0, 0: all in the first one */
};

/* ---- Result ------------------------------------------------------------------------------------------------------ */

enum hgemm_emulate_status {
  HGEMM_EMULATED = 0,        /* the kernel ran; findings, if any, are in the report */
  HGEMM_BAD_REQUEST = 1,     /* nothing ran; report_json is {"error": "..."} */
  HGEMM_REPORT_TOO_LONG = 2, /* the kernel ran, but the report was truncated: call again with more capacity */
  HGEMM_BUSY = 3             /* another thread runs a kernel of this shared object; report_json is {"error": "..."} */
};

/* Runs one launch and writes its report, a NUL-terminated JSON object:
 *
 *   {"findings": [{"kind": "race", "count": 12, "message": "...", "file": "operand.cuh", "line": 140}, ...],
 *    "sites": [{"file": "operand.cuh", "line": 140, "kind": "cp_async", "space": "shared", "requests": 96, "wavefronts": 384,
 *               "ideal_wavefronts": 384, "sectors": 1536, "ideal_sectors": 1536, "bytes": 49152}, ...],
 *    "counters": {"mma_m16n8k16": 256, "cta_barrier": 20, "bytes_global_to_shared": 49152, ..., "steps": 4711}}
 *
 * A run without findings is clean. There is one finding for each kind and source line, with the first message and a count.
 *
 *   bounds         an access outside its object: past a row, outside all regions or shared memory, or of the wrong direction
 *   alignment      an address that is not a multiple of the access size
 *   uninitialised  a read of memory that was never written
 *   poison         an element of D that depends on poison: unwritten memory, data in flight, padding, or an unset register
 *   race           two accesses of the same bytes, at least one a write, that no synchronization orders; also data in flight
 *   proxy          an access through the generic proxy, and a later one of the same bytes through the async proxy (TMA, wgmma)
 *                  without a proxy fence between them; at least one is a write
 *   write_once     an element of D that is written twice, or never
 *   deadlock       no warp can run; the message says where each warp waits and for what
 *   divergence     a collective (mma, ldmatrix, barrier) that some lanes or threads never reach, or reach with other operands
 *   pending        a thread ends with copies in flight, or a CTA ends while others still write its shared memory
 *   mbarrier, wgmma, tma, wmma, setmaxnreg, cluster     a violation of the rules of these instructions
 *   launch         a launch that lets the next one begin early, or that may begin early, accesses global memory before the
 *                  previous launches have ended
 *   assert         an assert of the kernel fails, or a trap
 *   endless        the step limit was reached
 *
 * `space` is "shared", "global" or "both" (a copy from one to the other). A site adds up all warp instructions of its line. A
 * wavefront is one pass of shared memory; a sector is 32 bytes of global memory. `bytes` counts received bytes, so a multicast
 * counts once for each receiver. Counters named "wgmma_..." count instructions of a warpgroup, "mma_..." of a warp. */
#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
int hgemm_emulate(struct hgemm_emulation const *request, char *report_json, size_t capacity);

#ifdef __cplusplus
}
#endif

#endif /* HGEMM_EXECUTOR_ABI_H */
