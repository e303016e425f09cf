/* Finds the real cuBLAS, and passes on the calls that this library does not serve.
 *
 * forwarded.h is generated. It defines FORWARDED(X), which is X(index, name) for each function without an own implementation.
 * Their arguments stay where the caller has put them: in registers and on the stack. Only a handle in the first argument is
 * replaced by the handle of the real cuBLAS. */
#define _GNU_SOURCE 1
#include "blas.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "forwarded.h"
#include "lt.h"

/* ---- The real library -------------------------------------------------------------------------------------------------- */

static pthread_once_t searched = PTHREAD_ONCE_INIT;
static void *library; /* null if there is none; RTLD_NEXT if the program has loaded it itself */
static int alone;

HGEMM_BLAS_API int cublasCreate_v2(void **handle);

/* The first and the last byte of this library; the linker defines both. */
extern char const __ehdr_start[] __attribute__((visibility("hidden")));
extern char const _end[] __attribute__((visibility("hidden")));

/* Tells whether a function is one of ours. A library with the name of the real one may only load ours. */
static int is_own(void const *function) {
  return (uintptr_t)function >= (uintptr_t)__ehdr_start && (uintptr_t)function < (uintptr_t)_end;
}

static void *found_in(void *candidate, char const *name) {
  void *const found = dlsym(candidate, name);
  return found != NULL && !is_own(found) ? found : NULL;
}

/* Tells whether a library is a cuBLAS or a cuBLASLt other than ours. */
static int is_real(void *candidate) {
  if (candidate == NULL) return 0;
  return found_in(candidate, "cublasCreate_v2") != NULL || found_in(candidate, "cublasLtCreate") != NULL;
}

static void search(void) {
  static char const *const names[] = {"libcublas.so.13",   "libcublas.so.12",   "libcublas.so",
                                      "libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"};
  static int const flags = RTLD_NOW | RTLD_LOCAL
#ifdef RTLD_DEEPBIND
                           | RTLD_DEEPBIND /* so that it calls its own functions, not ours */
#endif
      ;
  char const *const wanted = getenv("HGEMM_BLAS_FALLBACK");
  void *candidate;
  if (wanted != NULL) {
    alone = *wanted == '\0' || strcmp(wanted, "none") == 0;
    if (alone) return;
    candidate = dlopen(wanted, flags);
    if (is_real(candidate)) library = candidate;
    else fprintf(stderr, "hgemm_blas: HGEMM_BLAS_FALLBACK is %s, which is not cuBLAS: %s\n", wanted,
                 candidate != NULL ? "it has no cublasCreate_v2 of its own" : dlerror());
    return;
  }
  if (found_in(RTLD_NEXT, "cublasCreate_v2") != NULL) {
    library = RTLD_NEXT;
    return;
  }
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
    candidate = dlopen(names[i], flags);
    if (is_real(candidate)) {
      library = candidate;
      return;
    }
    if (candidate != NULL) dlclose(candidate);
  }
}

void *hgemm_blas_real(char const *name) {
  pthread_once(&searched, search);
  return library != NULL ? found_in(library, name) : NULL;
}

int hgemm_blas_alone(void) {
  pthread_once(&searched, search);
  return alone;
}

void *hgemm_blas_real_handle(hgemm_blas_handle *handle) {
  int (*create)(void **), (*set_stream)(void *, void *), (*set_workspace)(void *, void *, size_t);
  void *real = atomic_load_explicit(&handle->real, memory_order_acquire);
  int pushed = 0, entered = 0;
  if (real != NULL) return real;
  create = (int (*)(void **))hgemm_blas_real(handle->light ? "cublasLtCreate" : "cublasCreate_v2");
  if (create == NULL && handle->light && !alone) create = (int (*)(void **))hgemm_blas_light("cublasLtCreate");
  set_stream = (int (*)(void *, void *))hgemm_blas_real("cublasSetStream_v2");
  set_workspace = (int (*)(void *, void *, size_t))hgemm_blas_real("cublasSetWorkspace_v2");
  if (create == NULL || (set_stream == NULL && !handle->light)) return NULL;
  pthread_mutex_lock(&handle->creating);
  real = atomic_load_explicit(&handle->real, memory_order_acquire);
  if (real == NULL) {
    entered = handle->device != NULL && hgemm_enter(handle->device->handle, &pushed) == HGEMM_OK;
    if (create(&real) != BLAS_SUCCESS) real = NULL;
    if (entered) hgemm_leave(handle->device->handle, pushed);
    if (real != NULL && handle->light) {
      atomic_store_explicit(&handle->real, real, memory_order_release);
    } else if (real != NULL) {
      set_stream(real, handle->stream);
      if (handle->workspace != NULL && set_workspace != NULL) set_workspace(real, handle->workspace, handle->workspace_bytes);
      atomic_store_explicit(&handle->real, real, memory_order_release);
      if (handle->pointer_mode) hgemm_blas_forward_int(handle, "cublasSetPointerMode_v2", handle->pointer_mode);
      if (handle->math_mode) hgemm_blas_forward_int(handle, "cublasSetMathMode", handle->math_mode);
      if (handle->atomics_mode) hgemm_blas_forward_int(handle, "cublasSetAtomicsMode", handle->atomics_mode);
      if (handle->sm_count) hgemm_blas_forward_int(handle, "cublasSetSmCountTarget", handle->sm_count);
    }
  }
  pthread_mutex_unlock(&handle->creating);
  return real;
}

int hgemm_blas_forward_int(hgemm_blas_handle *handle, char const *name, int value) {
  void *const real = atomic_load_explicit(&handle->real, memory_order_acquire);
  int (*const set)(void *, int) = (int (*)(void *, int))(real != NULL ? hgemm_blas_real(name) : NULL);
  return set != NULL ? set(real, value) : BLAS_SUCCESS;
}

int hgemm_blas_major(void) {
  static char const *const newer[] = {"libcublas.so.13", "libcublasLt.so.13"};
  Dl_info where;
  int (*const own)(void **) = cublasCreate_v2;
  void *address, *loaded;
  memcpy(&address, &own, sizeof address);
  if (dladdr(address, &where) != 0 && where.dli_fname != NULL && strstr(where.dli_fname, "libcublas.so.13") != NULL) return 13;
  for (size_t i = 0; i < sizeof newer / sizeof *newer; ++i) { /* stubs with these names, if the program has loaded one */
    if ((loaded = dlopen(newer[i], RTLD_LAZY | RTLD_NOLOAD)) == NULL) continue;
    dlclose(loaded);
    return 13;
  }
  return 12;
}

/* ---- Calls that are passed on ------------------------------------------------------------------------------------------ */

#define NAME_OF(index, name) #name,
static char const *const names[] = {FORWARDED(NAME_OF) NULL};
enum { COUNT = sizeof names / sizeof *names - 1 };
static _Atomic(void *) targets[COUNT];

static int not_supported(void) { return BLAS_NOT_SUPPORTED; }

/* cuBLASLt accepts handles of cuBLAS, so calls with ours must not reach it. Other calls must, also without a real cuBLAS: the real
 * cuBLAS of the program may make them. */
void *hgemm_blas_light(char const *name) {
  static char const *const files[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
  void *found;
  if (strncmp(name, "cublasLt", 8) != 0) return NULL;
  found = found_in(RTLD_NEXT, name);
  for (size_t i = 0; found == NULL && i < sizeof files / sizeof *files; ++i) {
    void *const loaded = dlopen(files[i], RTLD_LAZY | RTLD_NOLOAD);
    if (loaded == NULL) continue;
    found = found_in(loaded, name);
    dlclose(loaded);
  }
  return found;
}

#define LT_NAME(name, text) text,
static char const *const lt_names[LT_COUNT] = {LT_FUNCTIONS(LT_NAME)};
static _Atomic(void *) lt_of_own[LT_COUNT], lt_of_foreign[LT_COUNT]; /* null until one was looked for */
static char absent; /* its address stands for a function that does not exist */

void *hgemm_lt_real(int function) {
  void *found = atomic_load_explicit(&lt_of_own[function], memory_order_acquire);
  if (found != NULL) return found != &absent ? found : NULL;
  if (!hgemm_blas_alone()) found = hgemm_blas_real(lt_names[function]);
  if (found == NULL && !hgemm_blas_alone()) found = hgemm_blas_light(lt_names[function]);
  atomic_store_explicit(&lt_of_own[function], found != NULL ? found : &absent, memory_order_release);
  return found;
}

void *hgemm_lt_loaded(int function) {
  void *found = atomic_load_explicit(&lt_of_foreign[function], memory_order_acquire);
  if (found != NULL) return found;
  found = hgemm_blas_light(lt_names[function]);
  if (found == NULL) found = hgemm_lt_real(function);
  if (found != NULL) atomic_store_explicit(&lt_of_foreign[function], found, memory_order_release);
  return found;
}

/* Returns the function to jump to. Replaces *first if it is one of our handles. */
__attribute__((used, visibility("hidden"))) void *hgemm_blas_target(uint32_t index, void **first) {
  int (*const refuse)(void) = not_supported;
  void *target = atomic_load_explicit(&targets[index], memory_order_acquire);
  hgemm_blas_handle *const own = hgemm_blas_find(*first);
  void *real;
  if (target == NULL) {
    target = hgemm_blas_real(names[index]);
    if (target == NULL && own == NULL) target = hgemm_blas_light(names[index]);
    if (target != NULL) atomic_store_explicit(&targets[index], target, memory_order_release);
  }
  if (own != NULL && target != NULL) {
    real = hgemm_blas_real_handle(own);
    if (real != NULL) *first = real;
    else target = NULL;
  }
  if (hgemm_blas_logs()) hgemm_blas_log_forwarded(names[index], index, target != NULL);
  if (target == NULL) memcpy(&target, &refuse, sizeof target);
  return target;
}

#if defined(__x86_64__)

/* Saves the registers of arguments, asks for the target, and jumps there with the caller's stack. */
__asm__(
    ".text\n"
    ".p2align 4\n"
    ".type hgemm_blas_jump, @function\n"
    "hgemm_blas_jump:\n"
    "  pushq %rbp\n"
    "  movq %rsp, %rbp\n"
    "  subq $176, %rsp\n"
    "  movq %rdi, (%rsp)\n"
    "  movq %rsi, 8(%rsp)\n"
    "  movq %rdx, 16(%rsp)\n"
    "  movq %rcx, 24(%rsp)\n"
    "  movq %r8, 32(%rsp)\n"
    "  movq %r9, 40(%rsp)\n"
    "  movups %xmm0, 48(%rsp)\n"
    "  movups %xmm1, 64(%rsp)\n"
    "  movups %xmm2, 80(%rsp)\n"
    "  movups %xmm3, 96(%rsp)\n"
    "  movups %xmm4, 112(%rsp)\n"
    "  movups %xmm5, 128(%rsp)\n"
    "  movups %xmm6, 144(%rsp)\n"
    "  movups %xmm7, 160(%rsp)\n"
    "  movl %eax, %edi\n"
    "  movq %rsp, %rsi\n"
    "  call hgemm_blas_target\n"
    "  movq %rax, %r11\n"
    "  movq (%rsp), %rdi\n"
    "  movq 8(%rsp), %rsi\n"
    "  movq 16(%rsp), %rdx\n"
    "  movq 24(%rsp), %rcx\n"
    "  movq 32(%rsp), %r8\n"
    "  movq 40(%rsp), %r9\n"
    "  movups 48(%rsp), %xmm0\n"
    "  movups 64(%rsp), %xmm1\n"
    "  movups 80(%rsp), %xmm2\n"
    "  movups 96(%rsp), %xmm3\n"
    "  movups 112(%rsp), %xmm4\n"
    "  movups 128(%rsp), %xmm5\n"
    "  movups 144(%rsp), %xmm6\n"
    "  movups 160(%rsp), %xmm7\n"
    "  leave\n"
    "  jmp *%r11\n"
    ".size hgemm_blas_jump, . - hgemm_blas_jump\n");

#define ENTRY(index, name)            \
  __asm__(".globl " #name "\n"        \
          ".type " #name ", @function\n" \
          #name ":\n"                 \
          "  endbr64\n"               \
          "  movl $" #index ", %eax\n" \
          "  jmp hgemm_blas_jump\n"   \
          ".size " #name ", . - " #name "\n");
FORWARDED(ENTRY)

#else /* no jump for this processor: the real cuBLAS serves products only */

#define ENTRY(index, name) \
  HGEMM_BLAS_API int name(void) { return not_supported(); }
FORWARDED(ENTRY)

#endif
