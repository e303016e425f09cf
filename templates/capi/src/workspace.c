/* Workspaces of a handle: one for the launches of each stream, one for the launches that graphs capture on it.
 *
 * A workspace begins with counters. They are zero between launches, because each launch leaves them zero. So launches that run
 * one after the other share a workspace without any further work. */
#include "handle.h"

enum { ALIGN_BYTES = 16, COUNTERS_BYTES = HGEMM_WORKSPACE_COUNTERS * 4 };

/* ---- Device memory ----------------------------------------------------------------------------------------------------- */

static hgemm_status fail_to_allocate(hgemm_driver const *cuda, int status, uint64_t bytes) {
  if (status != HGEMM_CU_OUT_OF_MEMORY) return hgemm_fail_driver(cuda, status, "allocate a workspace");
  return hgemm_fail(HGEMM_ERROR_MEMORY,
                    "no device memory for a workspace of %llu bytes: free memory, or set another size with "
                    "hgemm_set_workspace_size",
                    (unsigned long long)bytes);
}

static size_t counters_in(uint64_t bytes) { return bytes < COUNTERS_BYTES ? (size_t)bytes : (size_t)COUNTERS_BYTES; }

/* Fills the counters with zeros on a stream of its own, and waits. */
static int zero_counters(hgemm_driver const *cuda, uint64_t address, uint64_t bytes) {
  void *stream;
  int status = cuda->create_stream(&stream, HGEMM_CU_STREAM_NON_BLOCKING);
  if (status != 0) return status;
  status = cuda->zero(address, 0, counters_in(bytes), stream);
  if (status == 0) status = cuda->wait_for_stream(stream);
  cuda->destroy_stream(stream);
  return status;
}

/* Allocates a workspace and adds it to the reserve. */
static hgemm_status add_to_reserve(hgemm_handle *handle) {
  hgemm_driver const *const cuda = handle->cuda;
  uint64_t address = 0;
  int mode = HGEMM_CU_CAPTURE_RELAXED; /* another thread may capture: this one does nothing that its graph depends on */
  int status = cuda->exchange_capture_mode(&mode);
  if (status != 0) return hgemm_fail_driver(cuda, status, "relax the capture mode");
  status = cuda->allocate(&address, (size_t)handle->workspace_bytes);
  if (status == 0) {
    status = zero_counters(cuda, address, handle->workspace_bytes);
    if (status != 0) cuda->release(address);
  }
  cuda->exchange_capture_mode(&mode);
  if (status != 0) return fail_to_allocate(cuda, status, handle->workspace_bytes);
  handle->workspaces[handle->workspace_count++] = (hgemm_workspace){address, 0, NULL, HGEMM_IN_RESERVE};
  return HGEMM_OK;
}

/* ---- Streams ----------------------------------------------------------------------------------------------------------- */

/* During a capture the driver does not tell a stream's id. Then the handle identifies the stream. */
typedef struct stream_key {
  void const *handle;
  uint64_t id; /* HGEMM_UNKNOWN_STREAM during a capture */
  int captured;
} stream_key;

static hgemm_status key_of(hgemm_driver const *cuda, void *stream, stream_key *key) {
  static _Thread_local char of_thread;
  unsigned long long id = HGEMM_UNKNOWN_STREAM;
  int captured = 0, status = cuda->is_capturing(stream, &captured);
  if (status == 0 && !captured) {
    int mode = HGEMM_CU_CAPTURE_RELAXED; /* another thread may capture */
    status = cuda->exchange_capture_mode(&mode);
    if (status == 0) {
      status = cuda->stream_id(stream, &id);
      cuda->exchange_capture_mode(&mode);
    }
  }
  /* The streams of all threads have the same handle. */
  *key = (stream_key){(uintptr_t)stream == HGEMM_CU_PER_THREAD ? &of_thread : stream, id, captured};
  return status == 0 ? HGEMM_OK : hgemm_fail_driver(cuda, status, "identify the stream");
}

/* ---- The list of workspaces, under its mutex --------------------------------------------------------------------------- */

static int belongs_to(hgemm_workspace const *workspace, stream_key const *stream) {
  return stream->captured ? workspace->handle == stream->handle : workspace->stream == stream->id;
}

/* Returns the workspace of a stream for one use, or null. */
static hgemm_workspace *find(hgemm_handle *handle, stream_key const *stream, enum hgemm_workspace_use use) {
  for (uint32_t i = 0; i < handle->workspace_count; ++i) {
    hgemm_workspace *const found = &handle->workspaces[i];
    if (found->use == use && (use == HGEMM_IN_RESERVE || belongs_to(found, stream))) return found;
  }
  return NULL;
}

/* Tells the workspaces of a handle the id of its stream. Those of an earlier stream with this handle serve no further launch. */
static void tell_id(hgemm_handle *handle, stream_key const *stream) {
  for (uint32_t i = 0; i < handle->workspace_count; ++i) {
    hgemm_workspace *const found = &handle->workspaces[i];
    if (found->use == HGEMM_IN_RESERVE || found->use == HGEMM_RETIRED || found->handle != stream->handle) continue;
    if (found->stream == HGEMM_UNKNOWN_STREAM) found->stream = stream->id;
    if (found->stream == stream->id) continue;
    if (found->use == HGEMM_OF_CALLER) {
      *found = handle->workspaces[--handle->workspace_count];
      --i;
    } else {
      found->use = HGEMM_RETIRED;
    }
  }
}

/* Returns the id of a stream, or of the stream that has its handle, if it is known. */
static uint64_t known_id(hgemm_handle const *handle, stream_key const *stream) {
  uint64_t id = stream->id;
  for (uint32_t i = 0; i < handle->workspace_count && id == HGEMM_UNKNOWN_STREAM; ++i) {
    hgemm_workspace const *const other = &handle->workspaces[i];
    int const in_use = other->use != HGEMM_IN_RESERVE && other->use != HGEMM_RETIRED;
    if (in_use && other->handle == stream->handle) id = other->stream;
  }
  return id;
}

static uint32_t count_reserve(hgemm_handle const *handle) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < handle->workspace_count; ++i) count += handle->workspaces[i].use == HGEMM_IN_RESERVE;
  return count;
}

/* Allocates until `count` are in reserve, or the list is full. */
static hgemm_status fill_reserve(hgemm_handle *handle, uint32_t count) {
  hgemm_status status = HGEMM_OK;
  for (uint32_t there = count_reserve(handle); there < count && status == HGEMM_OK; ++there) {
    if (handle->workspace_count == HGEMM_MAX_WORKSPACES) return HGEMM_OK;
    status = add_to_reserve(handle);
  }
  return status;
}

static hgemm_status take(hgemm_handle *handle, stream_key const *stream, hgemm_scratch *scratch) {
  enum hgemm_workspace_use const use = stream->captured ? HGEMM_FOR_CAPTURES : HGEMM_FOR_LAUNCHES;
  hgemm_status status = HGEMM_OK;
  hgemm_workspace *found;
  *scratch = (hgemm_scratch){0, 1, 0};
  if (!stream->captured) tell_id(handle, stream);
  found = find(handle, stream, HGEMM_OF_CALLER);
  if (found == NULL) found = find(handle, stream, use);
  if (found == NULL) {
    if (use == HGEMM_FOR_LAUNCHES) status = fill_reserve(handle, 1);
    if (status != HGEMM_OK) return status;
    if ((found = find(handle, stream, HGEMM_IN_RESERVE)) == NULL) return HGEMM_OK;
    *found = (hgemm_workspace){found->address, known_id(handle, stream), stream->handle, use};
    /* The next capture cannot allocate. If this fails, the capture reports that it has no workspace. */
    if (use == HGEMM_FOR_LAUNCHES) fill_reserve(handle, 1);
  }
  scratch->address = found->address;
  return HGEMM_OK;
}

/* ---- Launches ---------------------------------------------------------------------------------------------------------- */

hgemm_status hgemm_take_workspace(hgemm_handle *handle, void *stream, uint64_t bytes, hgemm_scratch *scratch) {
  hgemm_driver const *const cuda = handle->cuda;
  stream_key key;
  int failed;
  hgemm_status status = key_of(cuda, stream, &key);
  if (status != HGEMM_OK) return status;
  pthread_mutex_lock(&handle->allocating);
  status = take(handle, &key, scratch);
  pthread_mutex_unlock(&handle->allocating);
  if (status != HGEMM_OK || scratch->address != 0) return status;
  if (key.captured) {
    return hgemm_fail(HGEMM_ERROR_CAPTURE,
                      "the stream is captured and no workspace is in reserve: before the capture, call hgemm_prepare, or "
                      "hgemm_reserve_workspaces for several streams; or pass a workspace (a handle has %d at most)",
                      (int)HGEMM_MAX_WORKSPACES);
  }
  failed = cuda->allocate_async(&scratch->address, (size_t)bytes, stream);
  if (failed != 0) return fail_to_allocate(cuda, failed, bytes);
  scratch->zeroed = 0, scratch->temporary = 1;
  return HGEMM_OK;
}

hgemm_status hgemm_refill_reserve(hgemm_handle *handle) {
  hgemm_status status;
  if (handle->workspace_bytes == 0) return HGEMM_OK;
  pthread_mutex_lock(&handle->allocating);
  status = fill_reserve(handle, 1);
  pthread_mutex_unlock(&handle->allocating);
  return status;
}

/* ---- Settings ---------------------------------------------------------------------------------------------------------- */

void hgemm_free_workspaces(hgemm_handle *handle) {
  for (uint32_t i = 0; i < handle->workspace_count; ++i) {
    if (handle->workspaces[i].use != HGEMM_OF_CALLER) handle->cuda->release(handle->workspaces[i].address);
  }
  handle->workspace_count = 0;
}

static hgemm_status check_handle(hgemm_handle const *handle) {
  if (handle == NULL) return hgemm_fail(HGEMM_ERROR_NULL_ARGUMENT, "the handle is null");
  if (handle->cuda->stream_id != NULL) return HGEMM_OK;
  return hgemm_fail(HGEMM_ERROR_DRIVER, "the driver has no cuStreamGetId: pass a workspace with each problem, or install a "
                                        "driver for CUDA 12");
}

hgemm_status hgemm_set_workspace_size(hgemm_handle *handle, uint64_t workspace_bytes) {
  int pushed;
  hgemm_status status = check_handle(handle);
  if (status == HGEMM_OK) status = hgemm_enter(handle, &pushed);
  if (status != HGEMM_OK) return status;
  hgemm_free_workspaces(handle);
  handle->workspace_bytes = workspace_bytes;
  hgemm_leave(handle, pushed);
  return HGEMM_OK;
}

hgemm_status hgemm_reserve_workspaces(hgemm_handle *handle, uint32_t count) {
  int pushed;
  hgemm_status status = check_handle(handle);
  if (status != HGEMM_OK || handle->workspace_bytes == 0) return status;
  if ((status = hgemm_enter(handle, &pushed)) != HGEMM_OK) return status;
  pthread_mutex_lock(&handle->allocating);
  status = fill_reserve(handle, count);
  if (status == HGEMM_OK && count_reserve(handle) < count) {
    status = hgemm_fail(HGEMM_ERROR_WORKSPACE, "%lu workspaces cannot be in reserve: a handle has %d at most, and this one "
                                               "uses %lu",
                        (unsigned long)count, (int)HGEMM_MAX_WORKSPACES,
                        (unsigned long)(handle->workspace_count - count_reserve(handle)));
  }
  pthread_mutex_unlock(&handle->allocating);
  hgemm_leave(handle, pushed);
  return status;
}

/* Checks the caller's memory for a stream that is not captured. */
static hgemm_status check_memory(hgemm_handle const *handle, void const *workspace, uint64_t bytes, int captured) {
  if (captured) return hgemm_fail(HGEMM_ERROR_CAPTURE, "the stream is captured: set its workspace before the capture");
  if ((uintptr_t)workspace % ALIGN_BYTES != 0) {
    return hgemm_fail(HGEMM_ERROR_WORKSPACE, "the address of the workspace, %p, is not a multiple of %d bytes", workspace,
                      (int)ALIGN_BYTES);
  }
  if (workspace == NULL || bytes >= handle->workspace_bytes) return HGEMM_OK;
  return hgemm_fail(HGEMM_ERROR_WORKSPACE,
                    "the workspace has %llu bytes, but launches of this handle may use %llu: call hgemm_set_workspace_size "
                    "first",
                    (unsigned long long)bytes, (unsigned long long)handle->workspace_bytes);
}

/* Replaces or adds the caller's workspace of a stream, or removes it if `address` is 0. */
static hgemm_status replace(hgemm_handle *handle, stream_key const *stream, uint64_t address) {
  hgemm_workspace *found;
  tell_id(handle, stream);
  found = find(handle, stream, HGEMM_OF_CALLER);
  if (address == 0) {
    if (found != NULL) *found = handle->workspaces[--handle->workspace_count];
    return HGEMM_OK;
  }
  if (found == NULL) {
    if (handle->workspace_count == HGEMM_MAX_WORKSPACES) {
      return hgemm_fail(HGEMM_ERROR_WORKSPACE, "the handle has %d workspaces, its limit: pass this one with each problem",
                        (int)HGEMM_MAX_WORKSPACES);
    }
    found = &handle->workspaces[handle->workspace_count++];
  }
  *found = (hgemm_workspace){address, stream->id, stream->handle, HGEMM_OF_CALLER};
  return HGEMM_OK;
}

hgemm_status hgemm_set_workspace(hgemm_handle *handle, void *stream, void *workspace, uint64_t workspace_bytes) {
  stream_key key;
  int pushed, failed = 0;
  hgemm_status status = check_handle(handle);
  if (status == HGEMM_OK) status = hgemm_enter(handle, &pushed);
  if (status != HGEMM_OK) return status;
  status = key_of(handle->cuda, stream, &key);
  if (status == HGEMM_OK) status = check_memory(handle, workspace, workspace_bytes, key.captured);
  if (status == HGEMM_OK && workspace != NULL) {
    failed = handle->cuda->zero((uintptr_t)workspace, 0, counters_in(workspace_bytes), stream);
    if (failed != 0) status = hgemm_fail_driver(handle->cuda, failed, "zero the counters of the workspace");
  }
  if (status == HGEMM_OK) {
    pthread_mutex_lock(&handle->allocating);
    status = replace(handle, &key, (uintptr_t)workspace);
    pthread_mutex_unlock(&handle->allocating);
  }
  hgemm_leave(handle, pushed);
  return status;
}
