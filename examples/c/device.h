/* Device memory through the CUDA driver, so that the example builds without a CUDA toolkit. Your program can use cudaMalloc and
 * cudaMemcpy instead. Errors end the program. */
#ifndef EXAMPLE_DEVICE_H
#define EXAMPLE_DEVICE_H

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int check_driver(int status, char const *action) {
  if (status == 0) return 0;
  fprintf(stderr, "cannot %s: CUDA driver error %d\n", action, status);
  exit(1);
}

static void driver_entry(char const *name, void *entry) {
  void *const library = dlopen("libcuda.so.1", RTLD_NOW);
  void *const found = library ? dlsym(library, name) : NULL;
  if (found == NULL) exit(check_driver(-1, name));
  memcpy(entry, &found, sizeof found);
}

static void enter_device(int ordinal) { /* makes the primary context current; hgemm_create uses the same one */
  int (*init)(unsigned), (*get)(int *, int), (*retain)(void **, int), (*set)(void *);
  int device;
  void *context;
  driver_entry("cuInit", &init);
  driver_entry("cuDeviceGet", &get);
  driver_entry("cuDevicePrimaryCtxRetain", &retain);
  driver_entry("cuCtxSetCurrent", &set);
  check_driver(init(0), "initialize the driver");
  check_driver(get(&device, ordinal), "find the device");
  check_driver(retain(&context, device), "make a context");
  check_driver(set(context), "make the context current");
}

static void *upload(void const *host, size_t bytes) { /* returns a copy in device memory */
  int (*allocate)(uint64_t *, size_t), (*copy)(uint64_t, void const *, size_t);
  uint64_t address;
  driver_entry("cuMemAlloc_v2", &allocate);
  driver_entry("cuMemcpyHtoD_v2", &copy);
  check_driver(allocate(&address, bytes), "allocate device memory");
  check_driver(copy(address, host, bytes), "copy to the device");
  return (void *)(uintptr_t)address;
}

static void download(void *host, void const *device, size_t bytes) { /* waits for all launches, then copies */
  int (*synchronize)(void), (*copy)(void *, uint64_t, size_t);
  driver_entry("cuCtxSynchronize", &synchronize);
  driver_entry("cuMemcpyDtoH_v2", &copy);
  check_driver(synchronize(), "run the kernel");
  check_driver(copy(host, (uintptr_t)device, bytes), "copy from the device");
}

static void release(void const *device) {
  int (*release_memory)(uint64_t);
  driver_entry("cuMemFree_v2", &release_memory);
  check_driver(release_memory((uintptr_t)device), "free memory");
}

#endif
