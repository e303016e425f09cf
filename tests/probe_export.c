/* Calls an exported library as its first argument says, and prints what came of it; see tests/test_export_programs.py. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "hgemm.h"

static void *fake(char const *name) { return dlsym(dlopen("libcuda.so.1", RTLD_NOW), name); }

static hgemm_problem product(int64_t m, int64_t n, int64_t k) { /* operands far apart, and tight */
  hgemm_problem p;
  hgemm_problem_init(&p);
  p.m = m, p.n = n, p.k = k;
  p.a = (void *)0x100000000, p.b = (void *)0x200000000, p.d = (void *)0x300000000;
  p.lda = k, p.ldb = k, p.ldd = n;
  return p;
}

static hgemm_problem split(void) { /* that split-K is best at */
  hgemm_problem p = product(64, 64, 65536);
  p.workspace = (void *)0x400000000, p.workspace_bytes = 1 << 20;
  return p;
}

static int lifetime(void) {
  long (*live)(void), (*launches)(void);
  hgemm_handle *handle;
  hgemm_problem const whole = product(256, 256, 256), skinny = split();
  hgemm_status status = hgemm_create(&handle, 0);
  if (status == HGEMM_OK) {
    status = hgemm_run(handle, &whole, NULL);
    if (status == HGEMM_OK) hgemm_run(handle, &skinny, NULL);
  }
  hgemm_destroy(handle);
  *(void **)&live = fake("fake_live");
  *(void **)&launches = fake("fake_launches");
  printf("live %ld status %d launches %ld %s\n", live(), status, launches(), hgemm_last_message());
  return 0;
}

static int context(void) {
  int (*get)(void **), (*set)(void *);
  char mine;
  void *found;
  hgemm_handle *handle;
  hgemm_problem const p = product(256, 256, 256);
  *(void **)&get = fake("cuCtxGetCurrent");
  *(void **)&set = fake("cuCtxSetCurrent");
  if (hgemm_create(&handle, 0) != HGEMM_OK || hgemm_run(handle, &p, NULL) != HGEMM_OK) return 1;
  get(&found);
  printf("none before, %s after\n", found ? "some" : "none");
  set(&mine);
  hgemm_destroy(handle);
  if (hgemm_create(&handle, HGEMM_CURRENT_CONTEXT) != HGEMM_OK || hgemm_run(handle, &p, NULL) != HGEMM_OK) return 1;
  get(&found);
  printf("mine before, %s after\n", found == &mine ? "mine" : "another");
  hgemm_destroy(handle);
  set(NULL);
  printf("no context: %d\n", hgemm_create(&handle, HGEMM_CURRENT_CONTEXT));
  return handle != NULL;
}

static void *launch_many(void *handle) {
  hgemm_problem const p = product(256, 256, 256);
  for (int i = 0; i < 100; ++i) {
    if (hgemm_run(handle, &p, NULL) != HGEMM_OK) return handle;
  }
  return NULL;
}

static void *launch_splits(void *handle) { /* on a stream of this thread */
  hgemm_problem const p = product(64, 64, 65536);
  for (int i = 0; i < 100; ++i) {
    if (hgemm_run(handle, &p, &i) != HGEMM_OK) return handle;
  }
  return NULL;
}

/* Runs a function in several threads on one handle. */
static int in_threads(void *(*launch)(void *)) {
  enum { COUNT = 8 };
  pthread_t thread[COUNT];
  hgemm_handle *handle;
  int failures = 0;
  if (hgemm_create(&handle, 0) != HGEMM_OK) return 1;
  for (int i = 0; i < COUNT; ++i) pthread_create(&thread[i], NULL, launch, handle);
  for (int i = 0; i < COUNT; ++i) {
    void *failed;
    pthread_join(thread[i], &failed);
    failures += failed != NULL;
  }
  hgemm_destroy(handle);
  return failures;
}

static int threads(void) { return in_threads(launch_many); }

static int thread_workspaces(void) { return in_threads(launch_splits); }

/* Does what each word of the input says, such as `run` or `stream=16`, and prints a status for each. */
static int workspaces(void) {
  void (*capture)(void *), (*new_streams)(void), (*after)(int), (*join)(void);
  long (*live)(void);
  hgemm_handle *handle;
  hgemm_choice choice = {0};
  hgemm_problem p = product(64, 64, 65536); /* that split-K is best at */
  void *stream = NULL;
  long number = 0, bytes = 64 << 20;
  char word[32];
  *(void **)&capture = fake("fake_capture");
  *(void **)&new_streams = fake("fake_new_streams");
  *(void **)&after = fake("fake_after");
  *(void **)&join = fake("fake_join");
  *(void **)&live = fake("fake_live");
  if (hgemm_create(&handle, 0) != HGEMM_OK) return 1;
  while (scanf(" %31[a-z_]", word) == 1) {
    hgemm_status status = HGEMM_OK;
    if (scanf("=%li", &number) != 1) number = 0;
    if (strcmp(word, "stream") == 0) stream = (void *)number;
    else if (strcmp(word, "capture") == 0) capture((void *)number);
    else if (strcmp(word, "new_streams") == 0) new_streams();
    else if (strcmp(word, "after") == 0) after((int)number);
    else if (strcmp(word, "join") == 0) join();
    else if (strcmp(word, "run") == 0) status = hgemm_run(handle, &p, stream);
    else if (strcmp(word, "m") == 0) p.m = number;
    else if (strcmp(word, "n") == 0) p.n = p.ldd = number;
    else if (strcmp(word, "k") == 0) p.k = number;
    else if (strcmp(word, "batch") == 0) p.batch = number, p.batch_stride_d = p.m * p.n;
    else if (strcmp(word, "layout") == 0) {
      p.layout = (hgemm_layout)number;
      p.lda = p.layout == HGEMM_TN || p.layout == HGEMM_TT ? p.k : p.m;
      p.ldb = p.layout == HGEMM_TN || p.layout == HGEMM_NN ? p.k : p.n;
    } else if (strcmp(word, "select") == 0) status = hgemm_select(handle, &p, &choice);
    else if (strcmp(word, "prepare") == 0) status = hgemm_prepare(handle, &p);
    else if (strcmp(word, "limit") == 0) p.workspace_bytes = (uint64_t)number;
    else if (strcmp(word, "pass") == 0) p.workspace = (void *)number;
    else if (strcmp(word, "size") == 0) status = hgemm_set_workspace_size(handle, (uint64_t)number);
    else if (strcmp(word, "reserve") == 0) status = hgemm_reserve_workspaces(handle, (uint32_t)number);
    else if (strcmp(word, "bytes") == 0) bytes = number;
    else if (strcmp(word, "set") == 0) status = hgemm_set_workspace(handle, stream, (void *)number, (uint64_t)bytes);
    else return 2;
    printf("%s %d %d %s\n", word, status, choice.splits, status ? hgemm_last_message() : "");
  }
  hgemm_destroy(handle);
  printf("live %ld\n", live());
  return 0;
}

static int list(void) {
  static hgemm_kernel kernels[4096];
  size_t const count = hgemm_list(kernels, 4096);
  for (size_t i = 0; i < count; ++i) {
    hgemm_kernel const *v = &kernels[i];
    printf("%s %s %dx%dx%d %d%d%d\n", v->symbol, v->arch, v->tile_m, v->tile_n, v->tile_k, v->align_a, v->align_b, v->align_d);
  }
  return hgemm_list(NULL, 0) != count;
}

static int maps(void) {
  hgemm_handle *handle;
  hgemm_problem p = product(4096, 8192, 2048);
  p.batch = 3;
  p.batch_stride_a = 4096 * 2048, p.batch_stride_d = (int64_t)4096 * 8192;
  if (hgemm_create(&handle, 0) != HGEMM_OK) return 1;
  if (hgemm_run(handle, &p, NULL) != HGEMM_OK || hgemm_run(handle, &p, NULL) != HGEMM_OK) return 2;
  p.ldb = 2048 + 64; /* rows of B are no multiples of 256 bytes */
  if (hgemm_run(handle, &p, NULL) != HGEMM_OK) return 3;
  int64_t *const fields[] = {&p.batch_stride_a, &p.batch_stride_b, &p.batch_stride_d, &p.lda, &p.ldd};
  for (size_t i = 0; i < sizeof fields / sizeof *fields; ++i) { /* each needs other maps */
    *fields[i] += i < 3 ? 1 << 28 : 64;
    if (hgemm_run(handle, &p, NULL) != HGEMM_OK) return 4 + (int)i;
  }
  p = product(8, 8192, 4096);
  p.layout = HGEMM_NN;
  for (p.lda = 8; p.lda <= 16; p.lda += 8) {
    if (hgemm_run(handle, &p, NULL) != HGEMM_OK) return 10;
  }
  hgemm_destroy(handle);
  return 0;
}

static int edges(void) {
  hgemm_handle *handle;
  hgemm_problem p = product(200, 2000, 512);
  p.layout = HGEMM_NT;
  if (hgemm_create(&handle, 0) != HGEMM_OK) return 1;
  for (p.lda = 200; p.lda <= 208; p.lda += 8) {
    p.ldb = p.lda + 1800;
    if (hgemm_run(handle, &p, NULL) != HGEMM_OK) return 2;
  }
  hgemm_destroy(handle);
  return 0;
}

/* ---- Bad input ---------------------------------------------------------------------------------------------------- */

static hgemm_handle *bad_handle;

static void expect(hgemm_status wanted, hgemm_problem const *p) {
  printf("%d|%d|%s\n", wanted, hgemm_run(bad_handle, p, NULL), hgemm_last_message());
}

#define BAD(wanted, change)                      \
  do {                                           \
    hgemm_problem p = product(256, 256, 256);    \
    change;                                      \
    expect(wanted, &p);                          \
  } while (0)

static int bad(void) {
  long (*launches)(void);
  hgemm_choice choice;
  hgemm_problem const good = product(256, 256, 256);
  printf("5|%d|%s\n", hgemm_run(NULL, &good, NULL), hgemm_last_message());
  printf("5|%d|%s\n", hgemm_create(NULL, 0), hgemm_last_message());
  printf("3|%d|%s\n", hgemm_create(&bad_handle, 7), hgemm_last_message());
  printf("3|%d|%s\n", hgemm_create(&bad_handle, -2), hgemm_last_message());
  if (hgemm_create(&bad_handle, 0) != HGEMM_OK) return 1;
  printf("5|%d|%s\n", hgemm_select(bad_handle, &good, NULL), hgemm_last_message());
  expect(HGEMM_ERROR_NULL_ARGUMENT, NULL);
  BAD(HGEMM_ERROR_STRUCT_SIZE, p.struct_size = 0);
  BAD(HGEMM_ERROR_STRUCT_SIZE, p.struct_size = sizeof p - 8);
  BAD(HGEMM_ERROR_STRUCT_SIZE, p.struct_size = UINT64_MAX);
  BAD(HGEMM_ERROR_UNKNOWN_VALUE, p.layout = 4);
  BAD(HGEMM_ERROR_UNKNOWN_VALUE, p.dtype_a = -1);
  BAD(HGEMM_ERROR_UNKNOWN_VALUE, p.activation = 1000);
  BAD(HGEMM_ERROR_UNKNOWN_VALUE, p.flags = 8);
  BAD(HGEMM_ERROR_SIZE, p.m = -1);
  BAD(HGEMM_ERROR_SIZE, p.k = INT64_MIN);
  BAD(HGEMM_ERROR_SIZE, p.batch = INT64_MAX);
  BAD(HGEMM_ERROR_SIZE, p.lda = INT64_MAX);
  BAD(HGEMM_ERROR_SIZE, p.a = (void *)(UINTPTR_MAX - 1));
  BAD(HGEMM_ERROR_POINTER, p.a = NULL);
  BAD(HGEMM_ERROR_POINTER, p.d = NULL);
  BAD(HGEMM_ERROR_POINTER, p.beta = 1.0f);
  BAD(HGEMM_ERROR_POINTER, p.bias_kind = HGEMM_BIAS_ROW);
  BAD(HGEMM_ERROR_ALIGNMENT, p.b = (void *)0x200000001);
  BAD(HGEMM_ERROR_LEADING_DIMENSION, p.ldb = 255);
  BAD(HGEMM_ERROR_LEADING_DIMENSION, p.ldd = INT64_MIN);
  BAD(HGEMM_ERROR_BATCH_STRIDE, (p.batch = 2, p.batch_stride_a = -8));
  BAD(HGEMM_ERROR_OVERLAP, (p.batch = 2, p.batch_stride_d = 8));
  BAD(HGEMM_ERROR_OVERLAP, p.a = p.d);
  BAD(HGEMM_ERROR_OVERLAP, (p.beta = 1.0f, p.c = (char *)p.d + 16, p.ldc = 256));
  BAD(HGEMM_ERROR_WORKSPACE, p.workspace = (void *)8);
  BAD(HGEMM_ERROR_OVERLAP, (p = split(), p.workspace = p.d));
  BAD(HGEMM_ERROR_NO_KERNEL, p.dtype_a = HGEMM_F32);
  *(void **)&launches = fake("fake_launches");
  if (launches() != 0) return 2;
  /* What looks bad and is not: nothing to do, one row, operands that are not read. */
  {
    hgemm_problem p = product(0, 256, 256), row = product(1, 256, 256), empty = product(256, 256, 0);
    p.a = p.b = NULL, p.d = NULL;
    row.lda = row.ldd = 0;
    empty.a = empty.b = NULL, empty.lda = empty.ldb = -1;
    if (hgemm_run(bad_handle, &p, NULL) != HGEMM_OK || launches() != 0) return 3;
    if (hgemm_select(bad_handle, &p, &choice) != HGEMM_OK || choice.symbol != NULL || choice.kernel != -1) return 4;
    if (hgemm_run(bad_handle, &row, NULL) != HGEMM_OK || hgemm_run(bad_handle, &empty, NULL) != HGEMM_OK) return 5;
    if (launches() != 2) return 6;
  }
  hgemm_destroy(bad_handle);
  hgemm_destroy(NULL);
  return 0;
}

int main(int count, char **arguments) {
  struct {
    char const *name;
    int (*act)(void);
  } const acts[] = {{"lifetime", lifetime}, {"context", context}, {"threads", threads},
                    {"list", list},         {"maps", maps},       {"edges", edges}, {"bad", bad},
                    {"workspaces", workspaces}, {"thread_workspaces", thread_workspaces}};
  for (size_t i = 0; count == 2 && i < sizeof acts / sizeof *acts; ++i) {
    if (strcmp(arguments[1], acts[i].name) == 0) return acts[i].act();
  }
  return 99;
}
