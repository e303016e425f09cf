/* The handle: an open GPU and its loaded kernels. */
#ifndef HGEMM_HANDLE_H
#define HGEMM_HANDLE_H

#include <pthread.h>
#include <stdatomic.h>

#include "driver.h"

typedef struct hgemm_kernel {
  _Atomic(void *) function; /* null until the kernel is loaded; written after the other fields */
  void *module;
  uint32_t resident_ctas; /* CTAs that run at the same time on the whole device; a multiple of the cluster size */
} hgemm_kernel;

struct hgemm_handle {
  hgemm_driver const *cuda;
  int device;       /* CUdevice */
  int owns_context; /* 1 if hgemm_create has retained the primary context */
  void *context;
  hgemm_target target;
  pthread_mutex_t loading; /* guards module loading */
  hgemm_kernel kernels[HGEMM_ROW_COUNT];
};

/* Makes the handle's context current on this thread. *pushed tells hgemm_leave whether to pop it. */
hgemm_status hgemm_enter(hgemm_handle const *handle, int *pushed);
void hgemm_leave(hgemm_handle const *handle, int pushed);

/* Loads a kernel unless it is loaded already. The handle's context must be current. */
hgemm_status hgemm_load(hgemm_handle *handle, uint32_t row);

#endif
