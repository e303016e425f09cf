/* The descriptors of cuBLASLt: matrix layouts, operations and preferences, and their copies for the real cuBLASLt.
 *
 * Statuses are those of the sections cublasLtMatrixLayout*, cublasLtMatmulDesc* and cublasLtMatmulPreference* of NVIDIA's
 * documentation: ALLOC_FAILED if a descriptor has too little room, INVALID_VALUE for an attribute that does not exist, a size that is
 * not its own, or a pointer that is null. Values are not checked before a product. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "lt.h"

/* ---- Attributes -------------------------------------------------------------------------------------------------------- */

typedef struct Attribute {
  int16_t id;
  uint8_t bytes, stored; /* in the program, and in our descriptor */
  uint16_t offset;
} Attribute;

#define ROW(type, id, bytes, field) {id, bytes, sizeof(((type *)0)->field), offsetof(type, field)}
#define LAYOUT(id, bytes, field) ROW(hgemm_lt_layout, id, bytes, field)
#define OPERATION(id, bytes, field) ROW(hgemm_lt_operation, id, bytes, field)
#define PREFERENCE(id, bytes, field) ROW(hgemm_lt_preference, id, bytes, field)

static Attribute const of_layout[] = { /* cublasLtMatrixLayoutAttribute_t */
    LAYOUT(0, 4, type),  LAYOUT(1, 4, order),  LAYOUT(2, 8, rows),  LAYOUT(3, 8, columns),   LAYOUT(4, 8, ld),
    LAYOUT(5, 4, batch), LAYOUT(6, 8, stride), LAYOUT(7, 8, plane), LAYOUT(8, 4, batch_mode),
};

static Attribute const of_operation[] = { /* cublasLtMatmulDescAttributes_t */
    OPERATION(0, 4, compute),       OPERATION(1, 4, scale),        OPERATION(2, 4, pointer_mode), OPERATION(3, 4, transa),
    OPERATION(4, 4, transb),        OPERATION(5, 4, transc),       OPERATION(6, 4, fill),         OPERATION(7, 4, epilogue),
    OPERATION(8, 8, bias),          OPERATION(10, 8, bias_stride), OPERATION(11, 8, aux),         OPERATION(12, 8, aux_ld),
    OPERATION(13, 8, aux_stride),   OPERATION(14, 8, alpha_stride), OPERATION(15, 4, sm_count),   OPERATION(16, 4, reserved),
    OPERATION(17, 8, scale_a),      OPERATION(18, 8, scale_b),     OPERATION(19, 8, scale_c),     OPERATION(20, 8, scale_d),
    OPERATION(21, 8, amax),         OPERATION(22, 4, aux_type),    OPERATION(23, 8, aux_scale),   OPERATION(24, 8, aux_amax),
    OPERATION(25, 1, fast),         OPERATION(26, 4, bias_type),   OPERATION(31, 4, mode_a),      OPERATION(32, 4, mode_b),
    OPERATION(33, 4, mode_c),       OPERATION(34, 4, mode_d),      OPERATION(35, 4, mode_aux),    OPERATION(36, 8, d_out_scale),
    OPERATION(37, 4, mode_d_out),   OPERATION(38, 8, emulation),
};

static Attribute const of_preference[] = { /* cublasLtMatmulPreferenceAttributes_t */
    PREFERENCE(0, 4, search),  PREFERENCE(1, 8, max_workspace), PREFERENCE(3, 4, reductions), PREFERENCE(5, 4, align_a),
    PREFERENCE(6, 4, align_b), PREFERENCE(7, 4, align_c),       PREFERENCE(8, 4, align_d),    PREFERENCE(9, 4, waves),
    PREFERENCE(12, 8, implementations),
};

typedef struct Kind {
  uint64_t magic;
  Attribute const *attributes;
  size_t count;
  int set, get, destroy; /* functions of the real library */
} Kind;

#define COUNT(table) (sizeof(table) / sizeof *(table))
static Kind const layouts = {LT_LAYOUT, of_layout, COUNT(of_layout), LT_LAYOUT_SET, LT_LAYOUT_GET, LT_LAYOUT_DESTROY};
static Kind const operations = {LT_OPERATION,     of_operation,     COUNT(of_operation),
                                LT_OPERATION_SET, LT_OPERATION_GET, LT_OPERATION_DESTROY};
static Kind const preferences = {LT_PREFERENCE,     of_preference,     COUNT(of_preference),
                                 LT_PREFERENCE_SET, LT_PREFERENCE_GET, LT_PREFERENCE_DESTROY};

int hgemm_lt_is(void const *descriptor, uint64_t magic) {
  uint64_t first;
  if (descriptor == NULL) return 0;
  memcpy(&first, descriptor, sizeof first);
  return first == magic;
}

static Attribute const *find(Kind const *kind, int id) {
  for (size_t i = 0; i < kind->count; ++i) {
    if (kind->attributes[i].id == id) return &kind->attributes[i];
  }
  return NULL;
}

/* Copies an attribute to the program's representation. */
static void load(Attribute const *attribute, void const *descriptor, void *value) {
  char const *const field = (char const *)descriptor + attribute->offset;
  int16_t narrow;
  int32_t wide;
  if (attribute->stored == attribute->bytes) {
    memcpy(value, field, attribute->bytes);
    return;
  }
  memcpy(&narrow, field, sizeof narrow);
  wide = narrow;
  memcpy(value, &wide, sizeof wide);
}

static int store(Attribute const *attribute, void *descriptor, void const *value) {
  char *const field = (char *)descriptor + attribute->offset;
  int16_t narrow;
  int32_t wide;
  if (attribute->stored == attribute->bytes) {
    memcpy(field, value, attribute->bytes);
    return BLAS_SUCCESS;
  }
  memcpy(&wide, value, sizeof wide);
  narrow = (int16_t)wide;
  if (narrow != wide) return BLAS_INVALID_VALUE;
  memcpy(field, &narrow, sizeof narrow);
  return BLAS_SUCCESS;
}

static int set(Kind const *kind, void *descriptor, int id, void const *value, size_t bytes) {
  Attribute const *const attribute = find(kind, id);
  if (descriptor == NULL) return BLAS_INVALID_VALUE;
  if (!hgemm_lt_is(descriptor, kind->magic)) {
    int (*const real)(void *, int, void const *, size_t) =
        (int (*)(void *, int, void const *, size_t))hgemm_lt_loaded(kind->set);
    return real != NULL ? real(descriptor, id, value, bytes) : BLAS_INVALID_VALUE;
  }
  if (attribute == NULL || value == NULL || bytes != attribute->bytes) return BLAS_INVALID_VALUE;
  return store(attribute, descriptor, value);
}

static int get(Kind const *kind, void const *descriptor, int id, void *value, size_t bytes, size_t *written) {
  Attribute const *const attribute = find(kind, id);
  if (descriptor == NULL) return BLAS_INVALID_VALUE;
  if (!hgemm_lt_is(descriptor, kind->magic)) {
    int (*const real)(void const *, int, void *, size_t, size_t *) =
        (int (*)(void const *, int, void *, size_t, size_t *))hgemm_lt_loaded(kind->get);
    return real != NULL ? real(descriptor, id, value, bytes, written) : BLAS_INVALID_VALUE;
  }
  if (attribute == NULL || (bytes == 0 && written == NULL)) return BLAS_INVALID_VALUE;
  if (bytes != 0) {
    if (value == NULL || bytes != attribute->bytes) return BLAS_INVALID_VALUE;
    load(attribute, descriptor, value);
  }
  if (written != NULL) *written = attribute->bytes;
  return BLAS_SUCCESS;
}

static int destroy(Kind const *kind, void *descriptor) {
  uint64_t const none = 0;
  if (descriptor == NULL) return BLAS_SUCCESS;
  if (!hgemm_lt_is(descriptor, kind->magic)) {
    int (*const real)(void *) = (int (*)(void *))hgemm_lt_loaded(kind->destroy);
    return real != NULL ? real(descriptor) : BLAS_INVALID_VALUE;
  }
  memcpy(descriptor, &none, sizeof none);
  free(descriptor);
  return BLAS_SUCCESS;
}

/* Copies what differs from `usual`, a descriptor as the real library makes it, to `real`. */
static int replay(Kind const *kind, void const *descriptor, void const *usual, void *real) {
  int (*const set_real)(void *, int, void const *, size_t) =
      (int (*)(void *, int, void const *, size_t))hgemm_lt_real(kind->set);
  int status = BLAS_SUCCESS;
  char value[8];
  if (set_real == NULL) return BLAS_NOT_SUPPORTED;
  for (size_t i = 0; i < kind->count && status == BLAS_SUCCESS; ++i) {
    Attribute const *const attribute = &kind->attributes[i];
    if (memcmp((char const *)descriptor + attribute->offset, (char const *)usual + attribute->offset, attribute->stored) == 0) {
      continue;
    }
    load(attribute, descriptor, value);
    status = set_real(real, attribute->id, value, attribute->bytes);
  }
  return status;
}

/* ---- Layouts ----------------------------------------------------------------------------------------------------------- */

HGEMM_BLAS_API int cublasLtMatrixLayoutInit_internal(void *layout, size_t bytes, int type, uint64_t rows, uint64_t columns,
                                                     int64_t ld) {
  hgemm_lt_layout made;
  if (layout == NULL) return BLAS_INVALID_VALUE;
  if (bytes < sizeof made) return BLAS_ALLOC_FAILED;
  memset(&made, 0, sizeof made);
  made.magic = LT_LAYOUT, made.rows = rows, made.columns = columns, made.ld = ld, made.batch = 1, made.order = LT_ORDER_COL;
  made.type = (int16_t)type;
  if (made.type != type) return BLAS_INVALID_VALUE;
  memcpy(layout, &made, sizeof made);
  return BLAS_SUCCESS;
}

HGEMM_BLAS_API int cublasLtMatrixLayoutCreate(void **layout, int type, uint64_t rows, uint64_t columns, int64_t ld) {
  hgemm_lt_layout *made;
  int status;
  if (layout == NULL) return BLAS_INVALID_VALUE;
  if ((made = malloc(sizeof *made)) == NULL) return BLAS_ALLOC_FAILED;
  status = cublasLtMatrixLayoutInit_internal(made, sizeof *made, type, rows, columns, ld);
  if (status == BLAS_SUCCESS) *layout = made;
  else free(made);
  return status;
}

/* Groups of products with sizes of their own, in cuBLAS 13.1 and later. Nothing here holds their layouts. */
HGEMM_BLAS_API int cublasLtGroupedMatrixLayoutInit_internal(void *layout, size_t bytes, int type, int groups, void const *rows,
                                                            void const *columns, void const *ld) {
  (void)layout, (void)bytes, (void)type, (void)groups, (void)rows, (void)columns, (void)ld;
  return BLAS_NOT_SUPPORTED;
}

HGEMM_BLAS_API int cublasLtGroupedMatrixLayoutCreate(void **layout, int type, int groups, void const *rows,
                                                     void const *columns, void const *ld) {
  if (layout == NULL) return BLAS_INVALID_VALUE;
  *layout = NULL;
  return cublasLtGroupedMatrixLayoutInit_internal(NULL, 0, type, groups, rows, columns, ld);
}

HGEMM_BLAS_API int cublasLtMatrixLayoutDestroy(void *layout) { return destroy(&layouts, layout); }

HGEMM_BLAS_API int cublasLtMatrixLayoutSetAttribute(void *layout, int id, void const *value, size_t bytes) {
  return set(&layouts, layout, id, value, bytes);
}

HGEMM_BLAS_API int cublasLtMatrixLayoutGetAttribute(void const *layout, int id, void *value, size_t bytes, size_t *written) {
  return get(&layouts, layout, id, value, bytes, written);
}

int hgemm_lt_real_layout(void const **descriptor, hgemm_lt_room *room) {
  int (*const init)(void *, size_t, int, uint64_t, uint64_t, int64_t) =
      (int (*)(void *, size_t, int, uint64_t, uint64_t, int64_t))hgemm_lt_real(LT_LAYOUT_INIT);
  hgemm_lt_layout ours, usual;
  int status;
  if (!hgemm_lt_is(*descriptor, LT_LAYOUT)) return BLAS_SUCCESS;
  if (init == NULL) return BLAS_NOT_SUPPORTED;
  memcpy(&ours, *descriptor, sizeof ours);
  status = init(room, sizeof *room, ours.type, ours.rows, ours.columns, ours.ld);
  if (status != BLAS_SUCCESS) return status;
  cublasLtMatrixLayoutInit_internal(&usual, sizeof usual, ours.type, ours.rows, ours.columns, ours.ld);
  *descriptor = room;
  return replay(&layouts, &ours, &usual, room);
}

/* ---- Operations -------------------------------------------------------------------------------------------------------- */

HGEMM_BLAS_API int cublasLtMatmulDescInit_internal(void *operation, size_t bytes, int compute, int scale) {
  hgemm_lt_operation made;
  if (operation == NULL) return BLAS_INVALID_VALUE;
  if (bytes < sizeof made) return BLAS_ALLOC_FAILED;
  memset(&made, 0, sizeof made);
  made.magic = LT_OPERATION, made.compute = (int16_t)compute, made.scale = (int16_t)scale, made.fill = LT_FILL_FULL;
  made.epilogue = LT_EPILOGUE_DEFAULT, made.aux_type = made.bias_type = LT_SAME_TYPE;
  if (made.compute != compute || made.scale != scale) return BLAS_INVALID_VALUE;
  memcpy(operation, &made, sizeof made);
  return BLAS_SUCCESS;
}

HGEMM_BLAS_API int cublasLtMatmulDescCreate(void **operation, int compute, int scale) {
  hgemm_lt_operation *made;
  int status;
  if (operation == NULL) return BLAS_INVALID_VALUE;
  if ((made = malloc(sizeof *made)) == NULL) return BLAS_ALLOC_FAILED;
  status = cublasLtMatmulDescInit_internal(made, sizeof *made, compute, scale);
  if (status == BLAS_SUCCESS) *operation = made;
  else free(made);
  return status;
}

HGEMM_BLAS_API int cublasLtMatmulDescDestroy(void *operation) { return destroy(&operations, operation); }

HGEMM_BLAS_API int cublasLtMatmulDescSetAttribute(void *operation, int id, void const *value, size_t bytes) {
  return set(&operations, operation, id, value, bytes);
}

HGEMM_BLAS_API int cublasLtMatmulDescGetAttribute(void const *operation, int id, void *value, size_t bytes, size_t *written) {
  return get(&operations, operation, id, value, bytes, written);
}

int hgemm_lt_real_operation(void const **descriptor, hgemm_lt_room *room) {
  int (*const init)(void *, size_t, int, int) = (int (*)(void *, size_t, int, int))hgemm_lt_real(LT_OPERATION_INIT);
  hgemm_lt_operation ours, usual;
  int status;
  if (!hgemm_lt_is(*descriptor, LT_OPERATION)) return BLAS_SUCCESS;
  if (init == NULL) return BLAS_NOT_SUPPORTED;
  memcpy(&ours, *descriptor, sizeof ours);
  status = init(room, sizeof *room, ours.compute, ours.scale);
  if (status != BLAS_SUCCESS) return status;
  cublasLtMatmulDescInit_internal(&usual, sizeof usual, ours.compute, ours.scale);
  *descriptor = room;
  return replay(&operations, &ours, &usual, room);
}

/* ---- Preferences ------------------------------------------------------------------------------------------------------- */

HGEMM_BLAS_API int cublasLtMatmulPreferenceInit_internal(void *preference, size_t bytes) {
  hgemm_lt_preference made;
  if (preference == NULL) return BLAS_INVALID_VALUE;
  if (bytes < sizeof made) return BLAS_ALLOC_FAILED;
  memset(&made, 0, sizeof made);
  made.magic = LT_PREFERENCE, made.search = LT_SEARCH_BEST_FIT, made.reductions = LT_REDUCTION_MASK;
  made.implementations = UINT64_MAX;
  made.align_a = made.align_b = made.align_c = made.align_d = 256;
  memcpy(preference, &made, sizeof made);
  return BLAS_SUCCESS;
}

HGEMM_BLAS_API int cublasLtMatmulPreferenceCreate(void **preference) {
  hgemm_lt_preference *made;
  if (preference == NULL) return BLAS_INVALID_VALUE;
  if ((made = malloc(sizeof *made)) == NULL) return BLAS_ALLOC_FAILED;
  *preference = made;
  return cublasLtMatmulPreferenceInit_internal(made, sizeof *made);
}

HGEMM_BLAS_API int cublasLtMatmulPreferenceDestroy(void *preference) { return destroy(&preferences, preference); }

HGEMM_BLAS_API int cublasLtMatmulPreferenceSetAttribute(void *preference, int id, void const *value, size_t bytes) {
  return set(&preferences, preference, id, value, bytes);
}

HGEMM_BLAS_API int cublasLtMatmulPreferenceGetAttribute(void const *preference, int id, void *value, size_t bytes,
                                                        size_t *written) {
  return get(&preferences, preference, id, value, bytes, written);
}

int hgemm_lt_real_preference(void const **descriptor, hgemm_lt_room *room) {
  int (*const init)(void *, size_t) = (int (*)(void *, size_t))hgemm_lt_real(LT_PREFERENCE_INIT);
  hgemm_lt_preference ours, usual;
  int status;
  if (!hgemm_lt_is(*descriptor, LT_PREFERENCE)) return BLAS_SUCCESS;
  if (init == NULL) return BLAS_NOT_SUPPORTED;
  memcpy(&ours, *descriptor, sizeof ours);
  status = init(room, sizeof *room);
  if (status != BLAS_SUCCESS) return status;
  cublasLtMatmulPreferenceInit_internal(&usual, sizeof usual);
  *descriptor = room;
  return replay(&preferences, &ours, &usual, room);
}
