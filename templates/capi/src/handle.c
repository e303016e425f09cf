/* Opens GPUs, lists kernels, and selects kernels without launching them. */
#include "handle.h"

#include <stdlib.h>
#include <string.h>

/* ---- Contexts ---------------------------------------------------------------------------------------------------------- */

hgemm_status hgemm_enter(hgemm_handle const *handle, int *pushed) {
  void *current = NULL;
  int status = handle->cuda->current_context(&current);
  *pushed = status == 0 && current != handle->context;
  if (*pushed) status = handle->cuda->push_context(handle->context);
  if (status != 0) *pushed = 0;
  return status == 0 ? HGEMM_OK : hgemm_fail_driver(handle->cuda, status, "enter the context");
}

void hgemm_leave(hgemm_handle const *handle, int pushed) {
  void *popped;
  if (pushed) handle->cuda->pop_context(&popped);
}

/* ---- Opening ----------------------------------------------------------------------------------------------------------- */

static hgemm_status find_device(hgemm_handle *handle, int ordinal) {
  hgemm_driver const *const cuda = handle->cuda;
  int count = 0;
  int status = cuda->device_count(&count);
  if (status != 0) return hgemm_fail_driver(cuda, status, "count devices");
  if (count == 0) return hgemm_fail(HGEMM_ERROR_NO_DEVICE, "the driver counts 0 GPUs");
  if (ordinal == HGEMM_CURRENT_CONTEXT) {
    status = cuda->current_context(&handle->context);
    if (status != 0 || handle->context == NULL || cuda->context_device(&handle->device) != 0) {
      return hgemm_fail(HGEMM_ERROR_WRONG_DEVICE, "no context is current on this thread: create one, or pass a device ordinal");
    }
    return HGEMM_OK;
  }
  if (ordinal < 0 || ordinal >= count) {
    return hgemm_fail(HGEMM_ERROR_WRONG_DEVICE, "device %d does not exist: this machine has %d GPUs", ordinal, count);
  }
  status = cuda->device(&handle->device, ordinal);
  if (status == 0) status = cuda->retain_context(&handle->context, handle->device);
  if (status != 0) return hgemm_fail_driver(cuda, status, "open the device");
  handle->owns_context = 1;
  return HGEMM_OK;
}

static hgemm_status read_properties(hgemm_handle *handle) {
  enum { MAJOR, MINOR, SMS, SMEM, MEMORY_KHZ, MEMORY_BITS, COUNT };
  static int const attributes[COUNT] = {HGEMM_CU_CAPABILITY_MAJOR, HGEMM_CU_CAPABILITY_MINOR, HGEMM_CU_MULTIPROCESSOR_COUNT,
                                        HGEMM_CU_MAX_SMEM_OPTIN,     HGEMM_CU_MEMORY_CLOCK_RATE, HGEMM_CU_MEMORY_BUS_WIDTH};
  int values[COUNT];
  for (int i = 0; i < COUNT; ++i) {
    int const status = handle->cuda->attribute(&values[i], attributes[i], handle->device);
    if (status != 0) return hgemm_fail_driver(handle->cuda, status, "read the device attributes");
  }
  hgemm_target_init(&handle->target, (uint32_t)(values[MAJOR] * 10 + values[MINOR]), (uint32_t)values[SMS],
                    (uint32_t)values[SMEM],
                    (uint32_t)((int64_t)2 * values[MEMORY_KHZ] * values[MEMORY_BITS] / 8000000));
  if (handle->target.count > 0) return HGEMM_OK;
  return hgemm_fail(HGEMM_ERROR_UNSUPPORTED_DEVICE,
                    "no kernel of this library runs on sm_%d%d: generate kernels with --arch %d%d, and export them", values[MAJOR],
                    values[MINOR], values[MAJOR], values[MINOR]);
}

hgemm_status hgemm_create(hgemm_handle **result, int device) {
  hgemm_driver const *cuda;
  hgemm_handle *handle;
  hgemm_status status;
  if (result == NULL) return hgemm_fail(HGEMM_ERROR_NULL_ARGUMENT, "the pointer to the handle is null");
  *result = NULL;
  if ((status = hgemm_open_driver(&cuda)) != HGEMM_OK) return status;
  if ((handle = calloc(1, sizeof *handle)) == NULL) return hgemm_fail(HGEMM_ERROR_MEMORY, "out of host memory");
  handle->cuda = cuda;
  pthread_mutex_init(&handle->loading, NULL);
  pthread_mutex_init(&handle->allocating, NULL);
  handle->workspace_bytes = cuda->stream_id != NULL ? HGEMM_DEFAULT_WORKSPACE_BYTES : 0;
  status = find_device(handle, device);
  if (status == HGEMM_OK) status = read_properties(handle);
  if (status != HGEMM_OK) {
    hgemm_destroy(handle);
    return status;
  }
  *result = handle;
  return HGEMM_OK;
}

void hgemm_destroy(hgemm_handle *handle) {
  int pushed;
  if (handle == NULL) return;
  if (handle->context != NULL && hgemm_enter(handle, &pushed) == HGEMM_OK) {
    hgemm_free_workspaces(handle);
    for (uint32_t row = 0; row < HGEMM_ROW_COUNT; ++row) {
      if (handle->kernels[row].module != NULL) handle->cuda->unload(handle->kernels[row].module);
    }
    hgemm_leave(handle, pushed);
  }
  if (handle->owns_context) handle->cuda->release_context(handle->device);
  pthread_mutex_destroy(&handle->loading);
  pthread_mutex_destroy(&handle->allocating);
  free(handle);
}

/* ---- List of kernels --------------------------------------------------------------------------------------------------- */

size_t hgemm_list(hgemm_kernel *kernels, size_t capacity) {
  for (size_t i = 0; kernels != NULL && i < capacity && i < HGEMM_ROW_COUNT; ++i) {
    hgemm_row const *const row = &hgemm_rows[i];
    uint64_t const kind = hgemm_groups[row->group].kind;
    hgemm_kernel const found = {
        .symbol = row->symbol,
        .arch = hgemm_groups[row->group].arch,
        .layout = (int32_t)(kind & 15),
        .dtype_a = (int32_t)(kind >> 4 & 15),
        .dtype_b = (int32_t)(kind >> 8 & 15),
        .dtype_d = (int32_t)(kind >> 12 & 15),
        .acc = (int32_t)(kind >> 16 & 15),
        .bias_kind = (int32_t)(kind >> 20 & 15),
        .activation = (int32_t)(kind >> 24 & 15),
        .supports_beta = (int32_t)row->beta,
        .tile_m = (int32_t)row->tile_m,
        .tile_n = (int32_t)row->tile_n,
        .tile_k = (int32_t)row->tile_k,
        .align_a = (int32_t)row->align_a,
        .align_b = (int32_t)row->align_b,
        .align_d = (int32_t)row->align_d,
        .splits = (int32_t)row->splits,
        .pointer_arrays = (kind & HGEMM_KIND_HAS_POINTER_ARRAYS) != 0,
        .epilogue = hgemm_epilogue_of(kind),
    };
    kernels[i] = found;
  }
  return HGEMM_ROW_COUNT;
}

/* ---- Selection without a launch ---------------------------------------------------------------------------------------- */

static hgemm_status select_on(hgemm_target const *target, hgemm_problem const *problem, uint64_t handle_bytes,
                              hgemm_choice *choice) {
  hgemm_request request;
  hgemm_selected selected;
  hgemm_status status;
  hgemm_row const *row;
  memset(choice, 0, sizeof *choice);
  choice->kernel = -1;
  status = hgemm_check_problem(problem, HGEMM_TO_SELECT, handle_bytes, &request);
  if (status != HGEMM_OK || request.empty) return status;
  if (!hgemm_find(target, &request.query, &selected)) return hgemm_fail_unmet(target, &request.query);
  row = &hgemm_rows[selected.row];
  choice->symbol = row->symbol;
  choice->kernel = (int32_t)selected.row;
  choice->jit = target->group_modes[row->group] == HGEMM_PTX_JIT;
  choice->workspace_bytes = hgemm_workspace_bytes(row, &request.query, selected.tiles - selected.whole_tiles, selected.splits);
  choice->splits = (int32_t)selected.splits;
  choice->whole_tiles = (int32_t)(selected.whole_tiles / (row->cluster_m * row->cluster_n));
  choice->raster_tiles = selected.raster_tiles;
  choice->estimated_clocks = selected.clocks;
  choice->rule = (int32_t)selected.rule;
  return HGEMM_OK;
}

hgemm_status hgemm_select(hgemm_handle *handle, hgemm_problem const *problem, hgemm_choice *choice) {
  if (handle == NULL || choice == NULL) return hgemm_fail(HGEMM_ERROR_NULL_ARGUMENT, "the handle or the choice is null");
  return select_on(&handle->target, problem, handle->workspace_bytes, choice);
}

hgemm_status hgemm_select_for(hgemm_device const *device, hgemm_problem const *problem, hgemm_choice *choice) {
  hgemm_target *target; /* too large for the stack: it grows with the number of kernels */
  hgemm_status status;
  if (device == NULL || choice == NULL) return hgemm_fail(HGEMM_ERROR_NULL_ARGUMENT, "the device or the choice is null");
  if (device->capability_major < 1 || device->capability_major > 99 || device->capability_minor < 0 ||
      device->capability_minor > 9 || device->multiprocessors < 1 || device->smem_bytes_per_cta < 0) {
    return hgemm_fail(HGEMM_ERROR_WRONG_DEVICE, "compute capability %d.%d with %d SMs and %d bytes is no GPU",
                      (int)device->capability_major, (int)device->capability_minor, (int)device->multiprocessors,
                      (int)device->smem_bytes_per_cta);
  }
  if ((target = malloc(sizeof *target)) == NULL) return hgemm_fail(HGEMM_ERROR_MEMORY, "out of host memory");
  hgemm_target_init(target, (uint32_t)(device->capability_major * 10 + device->capability_minor),
                    (uint32_t)device->multiprocessors, (uint32_t)device->smem_bytes_per_cta, 0);
  status = select_on(target, problem, 0, choice);
  free(target);
  return status;
}
