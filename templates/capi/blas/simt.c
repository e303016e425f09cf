/* Launches the kernels of simt.cu, which need no tensor cores. Their code is in simt.bin, as a fat binary or PTX. */
#include <stdio.h>
#include <string.h>

#include "blas.h"

__asm__(
    ".pushsection .rodata\n"
    ".balign 64\n"
    ".type hgemm_simt_image, %object\n"
    "hgemm_simt_image:\n"
    ".incbin \"" HGEMM_SIMT_IMAGE "\"\n"
    ".byte 0\n"
    ".size hgemm_simt_image, . - hgemm_simt_image\n"
    ".popsection\n");
extern unsigned char const hgemm_simt_image[] __attribute__((visibility("hidden")));

enum { TILE = 64, THREADS = 256, SMEM_BYTES = 0, LAYOUT_COUNT = 4 };

static struct {
  int32_t dtype, dtype_d;
  char const *name;
} const TYPES[] = {
    {HGEMM_F32, HGEMM_F32, "f32_f32_f32"},    {HGEMM_F16, HGEMM_F16, "f16_f32_f16"},    {HGEMM_F16, HGEMM_F32, "f16_f32_f32"},
    {HGEMM_BF16, HGEMM_BF16, "bf16_f32_bf16"}, {HGEMM_BF16, HGEMM_F32, "bf16_f32_f32"},
};
enum { TYPE_COUNT = sizeof TYPES / sizeof *TYPES };
typedef char one_kernel_for_each[TYPE_COUNT * LAYOUT_COUNT == SIMT_KERNELS ? 1 : -1];

typedef struct Parameter { /* Problem of simt.cu */
  uint64_t a, b, c, d, bias, workspace;
  int64_t lda, ldb, ldc, ldd, strides[5];
  int32_t m, n, k, batch;
  float alpha, beta;
  uint32_t splits, whole_tiles;
  int32_t raster_tiles;
  uint32_t pointers;
} Parameter;

typedef char parameter_has_160_bytes[sizeof(Parameter) == 160 ? 1 : -1];

/* Loads all kernels. The context must be current. */
static int load(hgemm_blas_device *device) {
  static char const *const layouts[LAYOUT_COUNT] = {
      [HGEMM_TN] = "tn", [HGEMM_NN] = "nn", [HGEMM_NT] = "nt", [HGEMM_TT] = "tt"};
  hgemm_driver const *const cuda = device->handle->cuda;
  void *module, *function;
  char name[64];
  if (cuda->load(&module, hgemm_simt_image) != 0) return BLAS_INTERNAL_ERROR;
  for (int i = SIMT_KERNELS - 1; i >= 0; --i) { /* the first one is set last */
    snprintf(name, sizeof name, "hgemm_simt_%s_%s", layouts[i % LAYOUT_COUNT], TYPES[i / LAYOUT_COUNT].name);
    if (cuda->function(&function, module, name) != 0) return BLAS_INTERNAL_ERROR;
    atomic_store_explicit(&device->simt[i], function, memory_order_release);
  }
  return BLAS_SUCCESS;
}

static int launch(hgemm_blas_device *device, uint32_t index, hgemm_problem const *p, int form, void *stream) {
  hgemm_driver const *const cuda = device->handle->cuda;
  uint64_t const tiles = (uint64_t)((p->m - 1) / TILE + 1) * (uint64_t)((p->n - 1) / TILE + 1);
  Parameter parameter = {(uintptr_t)p->a, (uintptr_t)p->b, (uintptr_t)p->c, (uintptr_t)p->d, 0, 0, p->lda, p->ldb, p->ldc,
                         p->ldd, {p->batch_stride_a, p->batch_stride_b, p->batch_stride_c, p->batch_stride_d, 0},
                         (int32_t)p->m, (int32_t)p->n, (int32_t)p->k, (int32_t)p->batch, p->alpha, p->beta, 1, 0, 0,
                         form == BLAS_POINTERS};
  void *parameters[1] = {&parameter};
  hgemm_launch_config const config = {(unsigned)(tiles * (uint64_t)p->batch), 1, 1, THREADS, 1, 1, SMEM_BYTES, stream, NULL, 0};
  if (tiles > INT32_MAX || tiles * (uint64_t)p->batch > INT32_MAX) return BLAS_FORWARD;
  return cuda->launch(&config, atomic_load_explicit(&device->simt[index], memory_order_acquire), parameters, NULL) == 0
             ? BLAS_SUCCESS
             : BLAS_EXECUTION_FAILED;
}

int hgemm_blas_simt(hgemm_blas_handle *handle, hgemm_problem const *p, int form) {
  static int64_t const most = INT32_MAX - TILE;
  hgemm_blas_device *const device = handle->device;
  hgemm_driver const *const cuda = device->handle->cuda;
  uint32_t type = 0, index;
  int status = BLAS_SUCCESS, pushed, mode = HGEMM_CU_CAPTURE_RELAXED;
  while (type < TYPE_COUNT && (TYPES[type].dtype != p->dtype_a || TYPES[type].dtype_d != p->dtype_d)) ++type;
  if (type == TYPE_COUNT || p->m > most || p->n > most || p->k > most || p->batch > most) return BLAS_FORWARD;
  if ((p->k > 0 && (p->a == NULL || p->b == NULL)) || p->d == NULL) return hgemm_blas_invalid("A, B or C is null");
  index = type * LAYOUT_COUNT + (uint32_t)p->layout;
  if (hgemm_enter(device->handle, &pushed) != HGEMM_OK) return BLAS_EXECUTION_FAILED;
  if (atomic_load_explicit(&device->simt[0], memory_order_acquire) == NULL) {
    pthread_mutex_lock(&device->loading);
    cuda->exchange_capture_mode(&mode); /* a graph may be captured now */
    if (atomic_load_explicit(&device->simt[0], memory_order_acquire) == NULL) status = load(device);
    cuda->exchange_capture_mode(&mode);
    pthread_mutex_unlock(&device->loading);
  }
  if (status == BLAS_SUCCESS) status = launch(device, index, p, form, handle->stream);
  hgemm_leave(device->handle, pushed);
  return status;
}
