/* The functions of cuBLAS that this library implements: handles, their settings, and matrix products. */
#include "lt.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLAS_DEFAULT_ALGORITHM (-1)

/* ---- Driver functions that hgemm does not call --------------------------------------------------------------------------- */

static struct {
  int (*context_id)(void *context, unsigned long long *id); /* null in drivers before CUDA 12 */
  int (*read)(void *to, uint64_t from, size_t bytes);
} more;
static pthread_once_t more_found = PTHREAD_ONCE_INIT;

static void find_more(void) {
  void *const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  void *found = library != NULL ? dlsym(library, "cuCtxGetId") : NULL;
  memcpy(&more.context_id, &found, sizeof found);
  found = library != NULL ? dlsym(library, "cuMemcpyDtoH_v2") : NULL;
  memcpy(&more.read, &found, sizeof found);
}

/* ---- Handles ----------------------------------------------------------------------------------------------------------- */

enum { MAX_HANDLES = 4096 };
static _Atomic(hgemm_blas_handle *) handles[MAX_HANDLES];
static _Atomic uint32_t handles_end; /* no higher slot was ever used */
static hgemm_blas_device *devices;
static pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER; /* guards the two lists */

hgemm_blas_handle *hgemm_blas_find(void const *handle) {
  uint32_t const end = atomic_load_explicit(&handles_end, memory_order_acquire);
  for (uint32_t i = 0; handle != NULL && i < end; ++i) {
    hgemm_blas_handle *const found = atomic_load_explicit(&handles[i], memory_order_acquire);
    if (found == handle) return found;
  }
  return NULL;
}

int hgemm_blas_status(hgemm_status status) {
  switch (status) {
    case HGEMM_OK: return BLAS_SUCCESS;
    case HGEMM_ERROR_NO_DRIVER:
    case HGEMM_ERROR_NO_DEVICE:
    case HGEMM_ERROR_WRONG_DEVICE: return BLAS_NOT_INITIALIZED;
    case HGEMM_ERROR_UNSUPPORTED_DEVICE: return BLAS_ARCH_MISMATCH;
    case HGEMM_ERROR_POINTER:
    case HGEMM_ERROR_ALIGNMENT: return BLAS_INVALID_VALUE;
    case HGEMM_ERROR_MEMORY: return BLAS_ALLOC_FAILED;
    case HGEMM_ERROR_IMAGE: return BLAS_INTERNAL_ERROR;
    case HGEMM_ERROR_DRIVER: return BLAS_EXECUTION_FAILED;
    default: return BLAS_FORWARD; /* legal in cuBLAS, but not here */
  }
}

/* Finds or opens the context that is current, or the first GPU. The list is locked. */
static hgemm_status open_device(hgemm_blas_device **result) {
  hgemm_driver const *cuda;
  void *context = NULL;
  unsigned long long id = 0;
  hgemm_blas_device *device;
  hgemm_handle *handle;
  hgemm_status status = hgemm_open_driver(&cuda);
  *result = NULL;
  if (status != HGEMM_OK) return status;
  pthread_once(&more_found, find_more);
  cuda->current_context(&context);
  if (context != NULL && more.context_id != NULL) more.context_id(context, &id);
  for (device = devices; device != NULL; device = device->next) {
    if (context != NULL && device->context == context && device->id == id) return *result = device, HGEMM_OK;
  }
  status = hgemm_create(&handle, context != NULL ? HGEMM_CURRENT_CONTEXT : 0);
  if (status != HGEMM_OK) return status;
  if (context == NULL && more.context_id != NULL) more.context_id(handle->context, &id);
  for (device = devices; device != NULL; device = device->next) {
    if (device->context == handle->context && device->id == id) {
      hgemm_destroy(handle);
      return *result = device, HGEMM_OK;
    }
  }
  if ((device = calloc(1, sizeof *device)) == NULL) {
    hgemm_destroy(handle);
    return hgemm_fail(HGEMM_ERROR_MEMORY, "out of host memory");
  }
  device->context = handle->context, device->id = id, device->handle = handle, device->next = devices;
  pthread_mutex_init(&device->loading, NULL);
  *result = devices = device;
  return HGEMM_OK;
}

static int add(hgemm_blas_handle *handle) {
  for (uint32_t i = 0; i < MAX_HANDLES; ++i) {
    if (atomic_load_explicit(&handles[i], memory_order_relaxed) != NULL) continue;
    atomic_store_explicit(&handles[i], handle, memory_order_release);
    if (i >= atomic_load_explicit(&handles_end, memory_order_relaxed)) {
      atomic_store_explicit(&handles_end, i + 1, memory_order_release);
    }
    return 1;
  }
  return 0;
}

static int create(void **result, int light) {
  hgemm_blas_handle *handle;
  hgemm_blas_device *device;
  hgemm_status opened;
  int status, added;
  if (result == NULL) return BLAS_INVALID_VALUE;
  pthread_mutex_lock(&changing);
  opened = open_device(&device);
  pthread_mutex_unlock(&changing);
  status = hgemm_blas_status(opened);
  if (status == BLAS_ARCH_MISMATCH && hgemm_blas_real(light ? "cublasLtCreate" : "cublasCreate_v2") != NULL) {
    status = BLAS_SUCCESS; /* it serves all */
  }
  if (status != BLAS_SUCCESS) {
    if (hgemm_blas_logs()) {
      fprintf(stderr, "hgemm_blas: %s: %s\n", light ? "cublasLtCreate" : "cublasCreate_v2", hgemm_last_message());
    }
    return status == BLAS_FORWARD ? BLAS_NOT_INITIALIZED : status;
  }
  if ((handle = calloc(1, sizeof *handle)) == NULL) return BLAS_ALLOC_FAILED;
  handle->device = device;
  handle->light = light;
  pthread_mutex_init(&handle->creating, NULL);
  pthread_mutex_lock(&changing);
  added = add(handle);
  pthread_mutex_unlock(&changing);
  if (!added) {
    free(handle);
    return BLAS_ALLOC_FAILED;
  }
  *result = handle;
  return BLAS_SUCCESS;
}

static int destroy(void *handle, int light) {
  hgemm_blas_handle *found = NULL;
  void *real;
  int (*destroy_real)(void *);
  int status = BLAS_SUCCESS;
  pthread_mutex_lock(&changing);
  for (uint32_t i = 0; handle != NULL && i < MAX_HANDLES && found == NULL; ++i) {
    if (atomic_load_explicit(&handles[i], memory_order_relaxed) != handle) continue;
    found = handle;
    atomic_store_explicit(&handles[i], NULL, memory_order_release);
  }
  pthread_mutex_unlock(&changing);
  real = found != NULL ? atomic_load_explicit(&found->real, memory_order_acquire) : handle;
  if (found != NULL) light = found->light;
  destroy_real = NULL;
  if (real != NULL) {
    destroy_real = (int (*)(void *))hgemm_blas_real(light ? "cublasLtDestroy" : "cublasDestroy_v2");
    if (destroy_real == NULL && light) destroy_real = (int (*)(void *))hgemm_blas_light("cublasLtDestroy");
  }
  if (destroy_real != NULL) status = destroy_real(real);
  if (found == NULL) return destroy_real != NULL ? status : BLAS_NOT_INITIALIZED;
  pthread_mutex_destroy(&found->creating);
  free(found);
  return status;
}

HGEMM_BLAS_API int cublasCreate_v2(void **handle) { return create(handle, 0); }

HGEMM_BLAS_API int cublasDestroy_v2(void *handle) { return handle != NULL ? destroy(handle, 0) : BLAS_NOT_INITIALIZED; }

/* Statuses: sections cublasLtCreate() and cublasLtDestroy() of NVIDIA's documentation. */
HGEMM_BLAS_API int cublasLtCreate(void **handle) { return create(handle, 1); }

HGEMM_BLAS_API int cublasLtDestroy(void *handle) { return handle != NULL ? destroy(handle, 1) : BLAS_INVALID_VALUE; }

/* ---- Settings ---------------------------------------------------------------------------------------------------------- */

static void *real_of(hgemm_blas_handle const *handle) {
  return atomic_load_explicit(&handle->real, memory_order_acquire);
}

HGEMM_BLAS_API int cublasSetStream_v2(void *handle, void *stream) {
  hgemm_blas_handle *const own = hgemm_blas_find(handle);
  int (*real)(void *, void *);
  if (handle == NULL) return BLAS_NOT_INITIALIZED;
  if (own != NULL) {
    own->stream = stream;
    own->workspace = NULL, own->workspace_bytes = 0; /* as documented */
    if (real_of(own) == NULL) return BLAS_SUCCESS;
  }
  real = (int (*)(void *, void *))hgemm_blas_real("cublasSetStream_v2");
  if (real == NULL) return own != NULL ? BLAS_SUCCESS : BLAS_NOT_INITIALIZED;
  return real(own != NULL ? real_of(own) : handle, stream);
}

HGEMM_BLAS_API int cublasGetStream_v2(void *handle, void **stream) {
  hgemm_blas_handle const *const own = hgemm_blas_find(handle);
  if (own == NULL) return BLAS_NOT_INITIALIZED;
  if (stream == NULL) return BLAS_INVALID_VALUE;
  *stream = own->stream;
  return BLAS_SUCCESS;
}

HGEMM_BLAS_API int cublasSetWorkspace_v2(void *handle, void *workspace, size_t bytes) {
  hgemm_blas_handle *const own = hgemm_blas_find(handle);
  int (*real)(void *, void *, size_t);
  if (own == NULL) return BLAS_NOT_INITIALIZED;
  if ((uintptr_t)workspace % 256 != 0) return BLAS_INVALID_VALUE;
  own->workspace = workspace, own->workspace_bytes = workspace != NULL ? bytes : 0;
  if (real_of(own) == NULL) return BLAS_SUCCESS;
  real = (int (*)(void *, void *, size_t))hgemm_blas_real("cublasSetWorkspace_v2");
  return real != NULL ? real(real_of(own), workspace, bytes) : BLAS_SUCCESS;
}

/* Calls a setter of the real cuBLAS with a handle that is not ours. */
static int set_foreign(void *handle, int value, char const *name) {
  int (*const real)(void *, int) = (int (*)(void *, int))(handle != NULL ? hgemm_blas_real(name) : NULL);
  return real != NULL ? real(handle, value) : BLAS_NOT_INITIALIZED;
}

static int set(void *handle, size_t field, int value, int legal, char const *name) {
  hgemm_blas_handle *const own = hgemm_blas_find(handle);
  if (own == NULL) return set_foreign(handle, value, name);
  if (!legal) return BLAS_INVALID_VALUE;
  memcpy((char *)own + field, &value, sizeof value);
  return real_of(own) != NULL ? hgemm_blas_forward_int(own, name, value) : BLAS_SUCCESS;
}

static int get(void *handle, size_t field, int *value) {
  hgemm_blas_handle const *const own = hgemm_blas_find(handle);
  if (own == NULL) return BLAS_NOT_INITIALIZED;
  if (value == NULL) return BLAS_INVALID_VALUE;
  memcpy(value, (char const *)own + field, sizeof *value);
  return BLAS_SUCCESS;
}

#define FIELD(name) offsetof(hgemm_blas_handle, name)

HGEMM_BLAS_API int cublasSetPointerMode_v2(void *handle, int mode) {
  return set(handle, FIELD(pointer_mode), mode, mode == BLAS_POINTER_HOST || mode == BLAS_POINTER_DEVICE,
             "cublasSetPointerMode_v2");
}
HGEMM_BLAS_API int cublasGetPointerMode_v2(void *handle, int *mode) { return get(handle, FIELD(pointer_mode), mode); }

HGEMM_BLAS_API int cublasSetMathMode(void *handle, int mode) {
  int const base = mode & ~BLAS_MATH_NO_REDUCED;
  return set(handle, FIELD(math_mode), mode, base >= 0 && base <= BLAS_MATH_LAST, "cublasSetMathMode");
}
HGEMM_BLAS_API int cublasGetMathMode(void *handle, int *mode) { return get(handle, FIELD(math_mode), mode); }

HGEMM_BLAS_API int cublasSetAtomicsMode(void *handle, int mode) {
  return set(handle, FIELD(atomics_mode), mode, mode == 0 || mode == 1, "cublasSetAtomicsMode");
}
HGEMM_BLAS_API int cublasGetAtomicsMode(void *handle, int *mode) { return get(handle, FIELD(atomics_mode), mode); }

HGEMM_BLAS_API int cublasSetSmCountTarget(void *handle, int count) {
  hgemm_blas_handle const *const own = hgemm_blas_find(handle);
  int const all = own != NULL && own->device != NULL ? (int)own->device->handle->target.sms : INT32_MAX;
  return set(handle, FIELD(sm_count), count, count >= 0 && count <= all, "cublasSetSmCountTarget");
}
HGEMM_BLAS_API int cublasGetSmCountTarget(void *handle, int *count) { return get(handle, FIELD(sm_count), count); }

/* ---- Versions and names ------------------------------------------------------------------------------------------------ */

HGEMM_BLAS_API int cublasGetProperty(int type, int *value) {
  if (value == NULL || type < 0 || type > 2) return BLAS_INVALID_VALUE;
  *value = type == 0 ? hgemm_blas_major() : 0;
  return BLAS_SUCCESS;
}

HGEMM_BLAS_API int cublasGetVersion_v2(void *handle, int *version) {
  (void)handle;
  if (version == NULL) return BLAS_INVALID_VALUE;
  *version = hgemm_blas_major() * 10000;
  return BLAS_SUCCESS;
}

HGEMM_BLAS_API size_t cublasGetCudartVersion(void) { return (size_t)hgemm_blas_major() * 1000; }

static struct {
  int status;
  char const *name, *text;
} const STATUSES[] = {
    {BLAS_SUCCESS, "CUBLAS_STATUS_SUCCESS", "success"},
    {BLAS_NOT_INITIALIZED, "CUBLAS_STATUS_NOT_INITIALIZED", "the handle is not initialized, or there is no GPU"},
    {BLAS_ALLOC_FAILED, "CUBLAS_STATUS_ALLOC_FAILED", "out of memory"},
    {BLAS_INVALID_VALUE, "CUBLAS_STATUS_INVALID_VALUE", "an argument is invalid"},
    {BLAS_ARCH_MISMATCH, "CUBLAS_STATUS_ARCH_MISMATCH", "the GPU lacks a required feature"},
    {BLAS_MAPPING_ERROR, "CUBLAS_STATUS_MAPPING_ERROR", "an access to GPU memory failed"},
    {BLAS_EXECUTION_FAILED, "CUBLAS_STATUS_EXECUTION_FAILED", "the launch failed on the GPU"},
    {BLAS_INTERNAL_ERROR, "CUBLAS_STATUS_INTERNAL_ERROR", "an internal operation failed"},
    {BLAS_NOT_SUPPORTED, "CUBLAS_STATUS_NOT_SUPPORTED", "the function is not supported with these arguments"},
    {BLAS_LICENSE_ERROR, "CUBLAS_STATUS_LICENSE_ERROR", "a license is missing"},
};

static char const *status_text(int status, int name) {
  for (size_t i = 0; i < sizeof STATUSES / sizeof *STATUSES; ++i) {
    if (STATUSES[i].status == status) return name ? STATUSES[i].name : STATUSES[i].text;
  }
  return name ? "CUBLAS_STATUS_UNKNOWN" : "an unknown status";
}

HGEMM_BLAS_API char const *cublasGetStatusName(int status) { return status_text(status, 1); }
HGEMM_BLAS_API char const *cublasGetStatusString(int status) { return status_text(status, 0); }

/* ---- Checks of a product ----------------------------------------------------------------------------------------------- */

static int legal_compute(int compute) { return compute >= BLAS_COMPUTE_16F && compute <= BLAS_COMPUTE_LAST; }

static int legal_type(int type) { return type >= 0 && type <= BLAS_TYPE_LAST; }

static int legal_algorithm(int algorithm) {
  return (algorithm >= -1 && algorithm <= 23) || (algorithm >= 99 && algorithm <= 115) || algorithm == 999;
}

static int legal_leading(int64_t leading, int64_t rows) { return leading >= (rows > 1 ? rows : 1); }

int hgemm_blas_invalid(char const *why) {
  hgemm_fail(HGEMM_OK, "%s", why);
  return BLAS_INVALID_VALUE;
}

int hgemm_blas_forward(char const *why) {
  if (hgemm_blas_logs()) hgemm_fail(HGEMM_OK, "%s", why);
  return BLAS_FORWARD;
}

/* Returns BLAS_SUCCESS if all arguments are legal, apart from their combination. */
static int check(hgemm_blas_product const *p) {
  if (!legal_operation(p->transa) || !legal_operation(p->transb)) return hgemm_blas_invalid("transa or transb is unknown");
  if (p->m < 0 || p->n < 0 || p->k < 0 || p->batch < 0) return hgemm_blas_invalid("a size is negative");
  if (!legal_leading(p->lda, p->transa == BLAS_OP_N ? p->m : p->k)) return hgemm_blas_invalid("lda is less than the rows of A");
  if (!legal_leading(p->ldb, p->transb == BLAS_OP_N ? p->k : p->n)) return hgemm_blas_invalid("ldb is less than the rows of B");
  if (!legal_leading(p->ldc, p->m)) return hgemm_blas_invalid("ldc is less than the rows of C");
  if (p->alpha == NULL || p->beta == NULL) return hgemm_blas_invalid("alpha or beta is null");
  if (!legal_type(p->type_a) || !legal_type(p->type_b) || !legal_type(p->type_c)) {
    return hgemm_blas_invalid("a data type is unknown");
  }
  if (!legal_compute(p->compute)) return hgemm_blas_invalid("the compute type is unknown");
  return legal_algorithm(p->algorithm) ? BLAS_SUCCESS : hgemm_blas_invalid("the algorithm is unknown");
}

int hgemm_blas_types_of(hgemm_blas_product const *p, int math_mode, hgemm_blas_types *types) {
  int const base = math_mode & ~BLAS_MATH_NO_REDUCED;
  int const half = p->compute == BLAS_COMPUTE_16F || p->compute == BLAS_COMPUTE_16F_PEDANTIC;
  int const full = p->compute == BLAS_COMPUTE_32F || p->compute == BLAS_COMPUTE_32F_PEDANTIC;
  int const fast = p->compute == BLAS_COMPUTE_32F_FAST_16F || p->compute == BLAS_COMPUTE_32F_FAST_16BF ||
                   p->compute == BLAS_COMPUTE_32F_FAST_TF32;
  *types = (hgemm_blas_types){HGEMM_F32, HGEMM_F32, half, fast || (p->compute == BLAS_COMPUTE_32F && base == BLAS_MATH_TF32)};
  if (p->type_a != p->type_b || !(half || full || fast)) return 0;
  if (p->type_a == BLAS_R_32F) return p->type_c == BLAS_R_32F && !half;
  if (fast || (p->type_a != BLAS_R_16F && p->type_a != BLAS_R_16BF)) return 0;
  types->fast = 0; /* the math mode is about f32 */
  types->dtype = p->type_a == BLAS_R_16F ? HGEMM_F16 : HGEMM_BF16;
  types->dtype_d = p->type_c == BLAS_R_32F ? HGEMM_F32 : types->dtype;
  if (p->type_c != p->type_a && p->type_c != BLAS_R_32F) return 0;
  return !half || (p->type_a == BLAS_R_16F && p->type_c == BLAS_R_16F);
}

int hgemm_blas_is_small(hgemm_blas_product const *p) { return (double)p->m * (double)p->n * (double)p->k < 65536; }

/* ---- alpha and beta ---------------------------------------------------------------------------------------------------- */

static float from_half(uint16_t bits) {
  uint32_t const sign = (uint32_t)(bits & 0x8000) << 16, exponent = bits >> 10 & 31, fraction = bits & 1023;
  uint32_t wide = sign | (exponent + 112) << 23 | fraction << 13;
  float value;
  if (exponent == 0) { /* zero or subnormal: fraction * 2^-24 */
    value = (float)fraction / 16777216.0f;
    return sign ? -value : value;
  }
  if (exponent == 31) wide = sign | 0x7F800000 | fraction << 13;
  memcpy(&value, &wide, sizeof value);
  return value;
}

static float scalar(void const *pointer, int half) {
  uint16_t bits;
  float value;
  if (!half) return memcpy(&value, pointer, sizeof value), value;
  memcpy(&bits, pointer, sizeof bits);
  return from_half(bits);
}

/* Tells whether the stream is captured in a graph. Then device memory cannot be read. */
static int is_captured(hgemm_blas_handle *handle) {
  int captured = 1, pushed;
  if (hgemm_enter(handle->device->handle, &pushed) != HGEMM_OK) return 1;
  if (handle->device->handle->cuda->is_capturing(handle->stream, &captured) != 0) captured = 1;
  hgemm_leave(handle->device->handle, pushed);
  return captured != 0;
}

/* Waits for the stream and copies from device memory. Returns 0 while the stream is captured, or if the copy fails. */
static int read_device(hgemm_blas_handle *handle, void *to, void const *from, size_t bytes) {
  hgemm_driver const *const cuda = handle->device->handle->cuda;
  int pushed, done;
  if (more.read == NULL || is_captured(handle) || hgemm_enter(handle->device->handle, &pushed) != HGEMM_OK) return 0;
  done = cuda->wait_for_stream(handle->stream) == 0 && more.read(to, (uintptr_t)from, bytes) == 0;
  hgemm_leave(handle->device->handle, pushed);
  return done;
}

int hgemm_blas_scalars(hgemm_blas_handle *handle, hgemm_blas_product const *p, int half, float *alpha, float *beta) {
  size_t const bytes = half ? 2 : 4;
  char at_alpha[4], at_beta[4];
  if (handle->pointer_mode == BLAS_POINTER_HOST) {
    *alpha = scalar(p->alpha, half), *beta = scalar(p->beta, half);
    return 1;
  }
  if (!read_device(handle, at_alpha, p->alpha, bytes) || !read_device(handle, at_beta, p->beta, bytes)) return 0;
  *alpha = scalar(at_alpha, half), *beta = scalar(at_beta, half);
  return 1;
}

/* ---- Products ---------------------------------------------------------------------------------------------------------- */

/* Column-major C = op(A) op(B) is row-major C^T = op(B)^T op(A)^T, so A and B change places. */
hgemm_problem hgemm_blas_problem(hgemm_blas_product const *p, hgemm_blas_types types, float alpha, float beta) {
  static int32_t const layouts[2][2] = {{HGEMM_NT, HGEMM_NN}, {HGEMM_TT, HGEMM_TN}}; /* k is contiguous in B, in A */
  hgemm_problem x;
  hgemm_problem_init(&x);
  x.layout = layouts[p->transb == BLAS_OP_N][p->transa != BLAS_OP_N];
  x.dtype_a = x.dtype_b = types.dtype;
  x.dtype_d = types.dtype_d;
  x.acc = types.half_scale ? HGEMM_ACC_F16 : HGEMM_ACC_F32;
  x.m = p->n, x.n = p->m, x.k = alpha != 0.0f ? p->k : 0, x.batch = p->batch; /* if alpha is 0, A and B are not read */
  x.a = p->b, x.lda = p->ldb, x.batch_stride_a = p->stride_b;
  x.b = p->a, x.ldb = p->lda, x.batch_stride_b = p->stride_a;
  x.c = x.d = p->c, x.ldc = x.ldd = p->ldc, x.batch_stride_c = x.batch_stride_d = p->stride_c;
  if (p->epilogue != NULL) x.c = p->epilogue->c, x.ldc = p->epilogue->ldc, x.batch_stride_c = p->epilogue->stride_c;
  x.alpha = alpha, x.beta = beta;
  return x;
}

/* Launches on tensor cores. Kernels may be loaded while the stream is captured. */
static hgemm_status run(hgemm_blas_handle *handle, hgemm_problem *problem) {
  hgemm_handle *const own = handle->device->handle;
  int mode = HGEMM_CU_CAPTURE_RELAXED;
  hgemm_status status;
  if (handle->stream != NULL) own->cuda->exchange_capture_mode(&mode);
  status = hgemm_run(own, problem, handle->stream);
  if (status == HGEMM_ERROR_CAPTURE && handle->workspace != NULL) { /* our workspaces are used up: take the caller's */
    problem->workspace = handle->workspace, problem->workspace_bytes = handle->workspace_bytes;
    status = hgemm_run(own, problem, handle->stream);
  }
  if (status == HGEMM_ERROR_CAPTURE || status == HGEMM_ERROR_WORKSPACE || status == HGEMM_ERROR_MEMORY) {
    problem->workspace = (void *)(uintptr_t)256, problem->workspace_bytes = 0; /* none */
    status = hgemm_run(own, problem, handle->stream);
  }
  if (handle->stream != NULL) own->cuda->exchange_capture_mode(&mode);
  return status;
}

static char const *kernel_of(hgemm_blas_handle *handle, hgemm_problem const *problem) {
  hgemm_choice choice;
  return hgemm_select(handle->device->handle, problem, &choice) == HGEMM_OK ? choice.symbol : NULL;
}

hgemm_epilogue const *hgemm_blas_expression(char const *hash) {
  size_t const count = hgemm_list(NULL, 0);
  hgemm_kernel *const kernels = malloc(count * sizeof *kernels);
  hgemm_epilogue const *found = NULL;
  if (kernels == NULL) return NULL;
  hgemm_list(kernels, count);
  for (size_t i = 0; i < count && found == NULL; ++i) {
    if (kernels[i].epilogue != NULL && strcmp(kernels[i].epilogue->hash, hash) == 0) found = kernels[i].epilogue;
  }
  free(kernels);
  return found;
}

int hgemm_blas_simt_serves(hgemm_blas_product const *p) {
  if (p->epilogue == NULL) return hgemm_blas_real("cublasGemmEx") == NULL;
  return p->epilogue->value == LT_EPILOGUE_DEFAULT && hgemm_lt_real(LT_MATMUL) == NULL;
}

int hgemm_blas_compute(hgemm_blas_handle *handle, hgemm_blas_product const *p, hgemm_blas_types types, float alpha,
                       float beta) {
  hgemm_problem problem = hgemm_blas_problem(p, types, alpha, beta);
  int status;
  if (p->epilogue != NULL && !hgemm_blas_add_epilogue(&problem, p->epilogue)) {
    return hgemm_blas_forward(beta != 0.0f ? "gelu needs a beta of 0" : "no kernel has gelu by tanh");
  }
  if (types.dtype == HGEMM_F32 && !types.fast) {
    status = hgemm_blas_forward(HGEMM_BLAS_EXACT);
  } else {
    if (types.fast) problem.dtype_a = problem.dtype_b = HGEMM_TF32;
    status = hgemm_blas_status(run(handle, &problem));
    if (status == BLAS_SUCCESS && hgemm_blas_logs()) hgemm_blas_log(p, BLAS_BY_HGEMM, kernel_of(handle, &problem));
    if (types.fast) problem.dtype_a = problem.dtype_b = HGEMM_F32;
    problem.workspace = NULL, problem.workspace_bytes = 0;
  }
  if (status == BLAS_FORWARD && hgemm_blas_simt_serves(p)) {
    status = hgemm_blas_simt(handle, &problem, BLAS_STRIDED);
    if (status == BLAS_SUCCESS && hgemm_blas_logs()) hgemm_blas_log(p, BLAS_BY_SIMT, hgemm_last_message());
  }
  return status;
}

/* Finds the products from `first` on whose matrices lie at constant distances. They are one strided batch, which *part becomes. */
static void strided_part(hgemm_blas_product const *p, void *const *pointers, int64_t first, hgemm_blas_product *part) {
  int const types[3] = {p->type_a, p->type_b, p->type_c};
  int64_t steps[3] = {0, 0, 0}, count = 1; /* in elements */
  void *const *const at[3] = {pointers + first, pointers + p->batch + first, pointers + 2 * p->batch + first};
  for (int fits = 1; fits && first + count < p->batch; count += fits) {
    for (int i = 0; i < 3; ++i) {
      int64_t const size = types[i] == BLAS_R_32F ? 4 : 2;
      int64_t const bytes = (int64_t)((uintptr_t)at[i][count] - (uintptr_t)at[i][count - 1]);
      if (count == 1) steps[i] = bytes / size;
      fits = fits && bytes >= 0 && bytes % size == 0 && bytes / size == steps[i];
    }
    fits = fits && (double)steps[2] >= (double)(p->n - 1) * (double)p->ldc + (double)p->m; /* the results do not overlap */
  }
  *part = *p;
  part->a = at[0][0], part->b = at[1][0], part->c = at[2][0], part->batch = count;
  if (count > 1) part->stride_a = steps[0], part->stride_b = steps[1], part->stride_c = steps[2];
}

/* Computes one strided batch after the other. Heads of attention that share keys are a few of them. */
static int compute_each(hgemm_blas_handle *handle, hgemm_blas_product const *p, hgemm_blas_types types, float alpha,
                        float beta, void *const *pointers) {
  hgemm_blas_product part;
  int status = BLAS_SUCCESS;
  for (int64_t first = 0; first < p->batch && status == BLAS_SUCCESS; first += part.batch) {
    strided_part(p, pointers, first, &part);
    status = hgemm_blas_compute(handle, &part, types, alpha, beta);
  }
  return status;
}

/* Computes all products in one launch that reads the pointers on the GPU. Returns a status, or BLAS_FORWARD.
 *
 * Kernels on tensor cores require matrices that are aligned to 16 bytes. The documentation of cublasGemmBatchedEx asks for this
 * alignment if k is a multiple of 4. Rows of 8-byte multiples are left out, because programs may align such matrices to 8 bytes. */
static int compute_at_once(hgemm_blas_handle *handle, hgemm_blas_product const *p, hgemm_blas_types types, float alpha,
                           float beta) {
  hgemm_problem problem = hgemm_blas_problem(p, types, alpha, beta);
  int status;
  if (types.dtype == HGEMM_F32 && !types.fast) return hgemm_blas_forward(HGEMM_BLAS_EXACT);
  if (p->k % (types.dtype == HGEMM_F32 ? 4 : 8) != 0) {
    return hgemm_blas_forward("pointer arrays need a k that is a multiple of 8, or of 4 with tf32");
  }
  if (types.fast) problem.dtype_a = problem.dtype_b = HGEMM_TF32;
  problem.flags |= HGEMM_POINTER_ARRAYS;
  status = hgemm_blas_status(run(handle, &problem));
  if (status == BLAS_SUCCESS && hgemm_blas_logs()) hgemm_blas_log(p, BLAS_BY_HGEMM, kernel_of(handle, &problem));
  return status;
}

/* Computes them without tensor cores, in one launch that reads the pointers on the GPU. */
static int compute_captured(hgemm_blas_handle *handle, hgemm_blas_product const *p, hgemm_blas_types types, float alpha,
                            float beta) {
  hgemm_problem const problem = hgemm_blas_problem(p, types, alpha, beta);
  int const status = hgemm_blas_simt(handle, &problem, BLAS_POINTERS);
  if (status == BLAS_SUCCESS && hgemm_blas_logs()) hgemm_blas_log(p, BLAS_BY_SIMT, hgemm_last_message());
  return status;
}

/* Tries a kernel with pointer arrays, then the real cuBLAS. Last, it waits for the arrays, reads them, and computes each product. */
static int compute_pointers(hgemm_blas_handle *handle, hgemm_blas_product const *p, hgemm_blas_types types, float alpha,
                            float beta) {
  size_t const count = (size_t)p->batch, bytes = count * sizeof(void *);
  void **pointers;
  int status;
  if (p->a == NULL || p->b == NULL || p->c == NULL) return hgemm_blas_invalid("an array of pointers is null");
  status = compute_at_once(handle, p, types, alpha, beta);
  if (status != BLAS_FORWARD || hgemm_blas_real("cublasGemmBatchedEx") != NULL) return status;
  if (is_captured(handle)) return compute_captured(handle, p, types, alpha, beta);
  if ((pointers = malloc(3 * bytes)) == NULL) return BLAS_ALLOC_FAILED;
  if (read_device(handle, pointers, p->a, bytes) && read_device(handle, pointers + count, p->b, bytes) &&
      read_device(handle, pointers + 2 * count, p->c, bytes)) {
    status = compute_each(handle, p, types, alpha, beta, pointers);
  }
  free(pointers);
  return status;
}

static int multiply(hgemm_blas_handle *handle, hgemm_blas_product const *p) {
  hgemm_blas_types types;
  float alpha, beta;
  int const status = check(p);
  if (status != BLAS_SUCCESS) return status;
  if (p->m == 0 || p->n == 0 || p->batch == 0) return BLAS_SUCCESS;
  if (handle->device == NULL) return hgemm_blas_forward(HGEMM_BLAS_NO_KERNEL);
  if (!hgemm_blas_types_of(p, handle->math_mode, &types)) return hgemm_blas_forward(HGEMM_BLAS_TYPES);
  if (handle->pointer_mode == BLAS_POINTER_DEVICE && hgemm_blas_real("cublasGemmEx") != NULL) {
    return hgemm_blas_forward(HGEMM_BLAS_DEVICE_SCALARS); /* no wait */
  }
  if (types.fast && hgemm_blas_is_small(p) && hgemm_blas_real("cublasGemmEx") != NULL) {
    return hgemm_blas_forward(HGEMM_BLAS_SMALL);
  }
  if (!hgemm_blas_scalars(handle, p, types.half_scale, &alpha, &beta)) return hgemm_blas_forward(HGEMM_BLAS_DEVICE_SCALARS);
  if (beta != 0.0f && p->c == NULL) return hgemm_blas_invalid("C is null");
  if (p->form == BLAS_POINTERS) return compute_pointers(handle, p, types, alpha, beta);
  return hgemm_blas_compute(handle, p, types, alpha, beta);
}

int hgemm_blas_multiply(hgemm_blas_handle *handle, hgemm_blas_product const *p) {
  int status;
  hgemm_blas_log_begin();
  status = multiply(handle, p);
  if (status != BLAS_SUCCESS && status != BLAS_FORWARD && hgemm_blas_logs()) hgemm_blas_log_failed(p, status);
  return status;
}

#define STRING_(x) #x
#define STRING(x) STRING_(x)
#define TEXT(name) STRING(NAME(name))

#define INT int
#define NAME(name) name
#include "gemm.h"
#undef INT
#undef NAME

#define INT int64_t
#define NAME(name) name##_64
#include "gemm.h"
