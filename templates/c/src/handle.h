/* One GPU and the kernels that were loaded on it. */
#ifndef HGEMM_HANDLE_H
#define HGEMM_HANDLE_H

#include <pthread.h>
#include <stdatomic.h>

#include "driver.h"

typedef struct hgemm_kernel {
  _Atomic(void *) function; /* null until it is loaded; what stands below is written before */
  void *module;
  uint32_t resident_ctas; /* of the whole device, in whole clusters */
} hgemm_kernel;

struct hgemm_handle {
  hgemm_driver const *cuda;
  int device;      /* the driver's */
  int owns_context; /* the primary context was retained */
  void *context;
  hgemm_target target;
  pthread_mutex_t loading;
  hgemm_kernel kernels[HGEMM_ROW_COUNT];
};

/* Makes the handle's context the thread's where it is not, and tells in *pushed whether hgemm_leave must undo that. */
hgemm_status hgemm_enter(hgemm_handle const *handle, int *pushed);
void hgemm_leave(hgemm_handle const *handle, int pushed);

/* Loads a kernel where that was not done. The handle's context is current. */
hgemm_status hgemm_load(hgemm_handle *handle, uint32_t row);

#endif
