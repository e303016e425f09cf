/* Opens libcuda.so.1 by dlopen, so that nothing of NVIDIA's is needed to link or to start. */
#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static hgemm_driver cuda;
static char const *missing; /* the entry that the driver lacks, or "" where there is no driver */
static int init_status;

static void find(void *library, char const *name, void *entry, int optional) {
  void *const found = dlsym(library, name);
  memcpy(entry, &found, sizeof found); /* ISO C has no cast from an object pointer to a function pointer */
  if (found == NULL && !optional && missing == NULL) missing = name;
}

static void open_once(void) {
  struct {
    char const *name;
    void *entry;
    int optional;
  } const entries[] = {
      {"cuInit", &cuda.init, 0},
      {"cuDeviceGetCount", &cuda.device_count, 0},
      {"cuDeviceGet", &cuda.device, 0},
      {"cuDeviceGetAttribute", &cuda.attribute, 0},
      {"cuDevicePrimaryCtxRetain", &cuda.retain_context, 0},
      {"cuDevicePrimaryCtxRelease_v2", &cuda.release_context, 0},
      {"cuCtxGetCurrent", &cuda.current_context, 0},
      {"cuCtxGetDevice", &cuda.context_device, 0},
      {"cuCtxPushCurrent_v2", &cuda.push_context, 0},
      {"cuCtxPopCurrent_v2", &cuda.pop_context, 0},
      {"cuModuleLoadData", &cuda.load, 0},
      {"cuModuleUnload", &cuda.unload, 0},
      {"cuModuleGetFunction", &cuda.function, 0},
      {"cuFuncSetAttribute", &cuda.set_attribute, 0},
      {"cuOccupancyMaxActiveBlocksPerMultiprocessor", &cuda.resident_ctas, 0},
      {"cuLaunchKernelEx", &cuda.launch, 0},
      {"cuMemsetD8Async", &cuda.zero, 0},
      {"cuGetErrorString", &cuda.error_text, 0},
      {"cuOccupancyMaxActiveClusters", &cuda.resident_clusters, 1},
      {"cuTensorMapEncodeTiled", &cuda.encode_map, 1},
  };
  void *const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL); /* never closed: the process keeps its driver */
  if (library == NULL) {
    missing = "";
    return;
  }
  for (size_t i = 0; i < sizeof entries / sizeof *entries; ++i) {
    find(library, entries[i].name, entries[i].entry, entries[i].optional);
  }
  if (missing == NULL) init_status = cuda.init(0);
}

hgemm_status hgemm_open_driver(hgemm_driver const **driver) {
  *driver = &cuda;
  pthread_once(&once, open_once);
  if (missing != NULL && *missing == '\0') {
    return hgemm_fail(HGEMM_ERROR_NO_DRIVER, "no NVIDIA GPU here: the driver, libcuda.so.1, is not installed");
  }
  if (missing != NULL) return hgemm_fail(HGEMM_ERROR_NO_DRIVER, "the driver has no %s: install one for CUDA 12", missing);
  if (init_status != 0) return hgemm_fail(HGEMM_ERROR_NO_DEVICE, "no NVIDIA GPU here: the driver says %d", init_status);
  return HGEMM_OK;
}

hgemm_status hgemm_refused(hgemm_driver const *driver, int status, char const *doing) {
  char const *text = NULL;
  driver->error_text(status, &text);
  return hgemm_fail(HGEMM_ERROR_DRIVER, "cannot %s: %s (%d)", doing, text ? text : "the driver does not say why", status);
}
