/* The log of HGEMM_BLAS_LOG=1: each problem once, with the kernel or library that served it or with the reason why the call failed,
 * and a summary at the exit. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lt.h"

enum { MAX_PRINTED = 8192, SERVERS = 4 };
#define NOBODY "nobody (no real cuBLAS)"

static pthread_once_t asked = PTHREAD_ONCE_INIT;
static int enabled;
static pthread_mutex_t printing = PTHREAD_MUTEX_INITIALIZER;
static uint64_t printed[MAX_PRINTED]; /* hashes; 0 is an empty slot */
static unsigned long long counts[SERVERS], forwarded, failed;

static void ask(void) {
  char const *const value = getenv("HGEMM_BLAS_LOG");
  enabled = value != NULL && *value != '\0' && strcmp(value, "0") != 0;
}

int hgemm_blas_logs(void) {
  pthread_once(&asked, ask);
  return enabled;
}

/* Returns 1 the first time. If the table is full, nothing is new. */
static int is_new(uint64_t hash) {
  uint64_t const wanted = hash | 1;
  for (uint32_t i = 0; i < 64; ++i) {
    uint64_t *const slot = &printed[(hash >> 20 ^ hash >> 40) % MAX_PRINTED + i < MAX_PRINTED
                                        ? (hash >> 20 ^ hash >> 40) % MAX_PRINTED + i
                                        : i];
    if (*slot == wanted) return 0;
    if (*slot == 0) return *slot = wanted, 1;
  }
  return 0;
}

static uint64_t mixed(uint64_t hash, uint64_t value) { return (hash ^ value) * UINT64_C(0x9E3779B97F4A7C15) + (hash >> 29); }

static char const *type_name(int type) {
  static char const *const names[BLAS_TYPE_LAST + 1] = {[BLAS_R_32F] = "f32",   [1] = "f64",  [BLAS_R_16F] = "f16", [3] = "i8",
                                                        [BLAS_R_16BF] = "bf16", [10] = "i32", [28] = "e4m3",        [29] = "e5m2"};
  return type >= 0 && type <= BLAS_TYPE_LAST && names[type] != NULL ? names[type] : "other";
}

static char const *epilogue_name(hgemm_blas_epilogue const *epilogue, char name[32]) {
  int const value = epilogue != NULL ? epilogue->value : LT_EPILOGUE_DEFAULT;
  int const rest = value & ~(LT_EPILOGUE_RELU | LT_EPILOGUE_BIAS | LT_EPILOGUE_GELU);
  if (value == LT_EPILOGUE_DEFAULT) return "";
  if (rest != 0) snprintf(name, 32, " epilogue %d", value);
  else snprintf(name, 32, "%s%s%s", value & LT_EPILOGUE_BIAS ? " bias" : "", value & LT_EPILOGUE_RELU ? " relu" : "",
                value & LT_EPILOGUE_GELU ? " gelu" : "");
  return name;
}

static char operation_name(int operation) { return legal_operation(operation) ? "NTC"[operation] : '?'; }

/* Prints a product, unless it was printed with the same outcome. The mutex is locked. */
static void print_once(hgemm_blas_product const *p, uint64_t outcome, char const *text, char const *detail) {
  uint64_t const numbers[] = {(uint64_t)p->m,   (uint64_t)p->n,   (uint64_t)p->k,   (uint64_t)p->batch, (uint64_t)p->lda,
                              (uint64_t)p->ldb, (uint64_t)p->ldc, (uint64_t)p->transa << 8 | (uint64_t)p->transb,
                              (uint64_t)p->type_a << 16 | (uint64_t)p->type_b << 8 | (uint64_t)p->type_c,
                              (uint64_t)p->compute << 8 | outcome, (uint64_t)(uintptr_t)p->function,
                              p->epilogue != NULL ? (uint64_t)p->epilogue->value : 0};
  uint64_t hash = 1;
  char name[32];
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; ++i) hash = mixed(hash, numbers[i]);
  if (!is_new(hash)) return;
  fprintf(stderr, "hgemm_blas: %s %c%c m %lld n %lld k %lld batch %lld ld %lld %lld %lld %s %s %s compute %d%s: %s%s%s\n",
          p->function, operation_name(p->transa), operation_name(p->transb), (long long)p->m, (long long)p->n, (long long)p->k,
          (long long)p->batch, (long long)p->lda, (long long)p->ldb, (long long)p->ldc, type_name(p->type_a),
          type_name(p->type_b), type_name(p->type_c), p->compute, epilogue_name(p->epilogue, name), text,
          detail != NULL && *detail != '\0' ? ", " : "", detail != NULL ? detail : "");
}

void hgemm_blas_log_begin(void) {
  if (hgemm_blas_logs()) hgemm_fail(HGEMM_OK, "%s", "");
}

void hgemm_blas_log(hgemm_blas_product const *p, int server, char const *detail) {
  static char const *const servers[SERVERS] = {"hgemm", "hgemm without tensor cores", "cuBLAS", NOBODY};
  pthread_mutex_lock(&printing);
  ++counts[server];
  print_once(p, (uint64_t)server, servers[server], detail);
  pthread_mutex_unlock(&printing);
}

void hgemm_blas_log_failed(hgemm_blas_product const *p, int status) {
  pthread_mutex_lock(&printing);
  ++failed;
  print_once(p, (uint64_t)(SERVERS + status), cublasGetStatusName(status), hgemm_last_message());
  pthread_mutex_unlock(&printing);
}

void hgemm_blas_log_forwarded(char const *function, uint32_t index, int found) {
  pthread_mutex_lock(&printing);
  ++forwarded;
  if (is_new(mixed(2, index + 1))) fprintf(stderr, "hgemm_blas: %s: %s\n", function, found ? "cuBLAS" : NOBODY);
  pthread_mutex_unlock(&printing);
}

__attribute__((destructor)) static void summarize(void) {
  unsigned long long all = forwarded + failed;
  for (int i = 0; i < SERVERS; ++i) all += counts[i];
  if (all == 0 || !hgemm_blas_logs()) return; /* LD_PRELOAD also loads this library into programs that never call it */
  fprintf(stderr,
          "hgemm_blas: %llu products served on tensor cores, %llu without, %llu by cuBLAS, %llu refused; %llu calls of other "
          "functions",
          counts[BLAS_BY_HGEMM], counts[BLAS_BY_SIMT], counts[BLAS_BY_CUBLAS], counts[BLAS_BY_NONE], forwarded);
  if (failed > 0) fprintf(stderr, "; %llu calls failed", failed);
  fprintf(stderr, "\n");
}
