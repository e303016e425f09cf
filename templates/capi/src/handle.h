/* The handle: an open GPU, its loaded kernels and its workspaces. */
#ifndef HGEMM_HANDLE_H
#define HGEMM_HANDLE_H

#include <pthread.h>
#include <stdatomic.h>

#include "driver.h"

typedef struct hgemm_loaded_kernel {
  _Atomic(void *) function; /* null until the kernel is loaded; written after the other fields */
  void *module;
  uint32_t resident_ctas; /* CTAs that run at the same time on the whole device; a multiple of the cluster size */
} hgemm_loaded_kernel;

enum { HGEMM_MAX_WORKSPACES = 32 }; /* with the default size about 1 GiB; hgemm.h names the number */

enum hgemm_workspace_use {
  HGEMM_IN_RESERVE,
  HGEMM_FOR_LAUNCHES,
  HGEMM_FOR_CAPTURES, /* the launches that graphs capture on the stream */
  HGEMM_OF_CALLER,    /* for both; not owned */
  HGEMM_RETIRED       /* of a destroyed stream, whose work or graphs may still run */
};

#define HGEMM_UNKNOWN_STREAM UINT64_MAX /* no stream has this id */

typedef struct hgemm_workspace {
  uint64_t address;
  uint64_t stream;    /* the stream's id, which no later stream has; unknown if only captures have used the stream */
  void const *handle; /* the stream's handle, which a later stream may have */
  enum hgemm_workspace_use use;
} hgemm_workspace;

/* The workspace of one launch. */
typedef struct hgemm_scratch {
  uint64_t address;
  int zeroed;    /* 1 if the counters are zero already */
  int temporary; /* 1 if it must be given back in stream order after the launch */
} hgemm_scratch;

struct hgemm_handle {
  hgemm_driver const *cuda;
  int device;       /* CUdevice */
  int owns_context; /* 1 if hgemm_create has retained the primary context */
  void *context;
  hgemm_target target;
  pthread_mutex_t loading; /* guards module loading */
  hgemm_loaded_kernel kernels[HGEMM_ROW_COUNT];
  uint64_t workspace_bytes;   /* of each workspace; 0 if there are none */
  pthread_mutex_t allocating; /* guards the workspaces */
  uint32_t workspace_count;
  hgemm_workspace workspaces[HGEMM_MAX_WORKSPACES];
};

/* Makes the handle's context current on this thread. *pushed tells hgemm_leave whether to pop it. */
hgemm_status hgemm_enter(hgemm_handle const *handle, int *pushed);
void hgemm_leave(hgemm_handle const *handle, int pushed);

/* Loads a kernel unless it is loaded already. The handle's context must be current. */
hgemm_status hgemm_load(hgemm_handle *handle, uint32_t row);

/* Finds or allocates a workspace for a launch of `bytes` on a stream. The handle's context must be current. */
hgemm_status hgemm_take_workspace(hgemm_handle *handle, void *stream, uint64_t bytes, hgemm_scratch *scratch);

/* Puts a workspace in reserve if none is there and the handle can have one more. The handle's context must be current. */
hgemm_status hgemm_refill_reserve(hgemm_handle *handle);

/* Frees the workspaces. The handle's context must be current. */
void hgemm_free_workspaces(hgemm_handle *handle);

#endif
