/* Loads libcuda.so.1 with dlopen, so that programs link and start without any NVIDIA software. */
#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

static pthread_once_t opened = PTHREAD_ONCE_INIT;
static hgemm_driver cuda;
static char const *missing; /* a function that the driver does not have, or "" if there is no driver */
static int init_status;

static void find(void *library, char const *name, void *entry, int optional) {
  void *const found = dlsym(library, name);
  memcpy(entry, &found, sizeof found); /* ISO C does not allow casts from object pointers to function pointers */
  if (found == NULL && !optional && missing == NULL) missing = name;
}

static void open_library(void) {
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
      {"cuMemAlloc_v2", &cuda.allocate, 0},
      {"cuMemFree_v2", &cuda.release, 0},
      {"cuMemAllocAsync", &cuda.allocate_async, 0},
      {"cuMemFreeAsync", &cuda.release_async, 0},
      {"cuStreamCreate", &cuda.create_stream, 0},
      {"cuStreamSynchronize", &cuda.wait_for_stream, 0},
      {"cuStreamDestroy_v2", &cuda.destroy_stream, 0},
      {"cuStreamIsCapturing", &cuda.is_capturing, 0},
      {"cuThreadExchangeStreamCaptureMode", &cuda.exchange_capture_mode, 0},
      {"cuStreamGetId", &cuda.stream_id, 1},
      {"cuStreamGetCaptureInfo_v3", &cuda.capture_info, 1},
      {"cuGraphNodeGetType", &cuda.node_type, 1},
      {"cuGraphKernelNodeGetParams_v2", &cuda.kernel_node, 1},
      {"cuOccupancyMaxActiveClusters", &cuda.resident_clusters, 1},
      {"cuTensorMapEncodeTiled", &cuda.encode_map, 1},
  };
  void *const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL); /* never closed */
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
  pthread_once(&opened, open_library);
  if (missing != NULL && *missing == '\0') {
    return hgemm_fail(HGEMM_ERROR_NO_DRIVER, "cannot load libcuda.so.1: install an NVIDIA driver for CUDA 12");
  }
  if (missing != NULL) return hgemm_fail(HGEMM_ERROR_NO_DRIVER, "the driver has no %s: install a driver for CUDA 12", missing);
  if (init_status != 0) return hgemm_fail_driver(&cuda, init_status, "start the driver"), HGEMM_ERROR_NO_DEVICE;
  return HGEMM_OK;
}

hgemm_status hgemm_fail_driver(hgemm_driver const *driver, int status, char const *action) {
  char const *text = NULL;
  driver->error_text(status, &text);
  return hgemm_fail(HGEMM_ERROR_DRIVER, "cannot %s: %s (%d)", action, text ? text : "no description", status);
}
