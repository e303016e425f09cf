/* Device memory by the CUDA driver, for examples that are to be built without a CUDA toolkit. A program that has one uses
 * cudaMalloc and cudaMemcpy instead. */
#ifndef EXAMPLE_DEVICE_H
#define EXAMPLE_DEVICE_H

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int call(int status, char const *doing) {
  if (status == 0) return 0;
  fprintf(stderr, "cannot %s: the driver says %d\n", doing, status);
  exit(1);
}

static void driver_entry(char const *name, void *entry) {
  void *const library = dlopen("libcuda.so.1", RTLD_NOW);
  void *const found = library ? dlsym(library, name) : NULL;
  if (found == NULL) exit(call(-1, name));
  memcpy(entry, &found, sizeof found);
}

static void enter_device(int ordinal) { /* its primary context, which hgemm_create takes too */
  int (*init)(unsigned), (*get)(int *, int), (*retain)(void **, int), (*set)(void *);
  int device;
  void *context;
  driver_entry("cuInit", &init);
  driver_entry("cuDeviceGet", &get);
  driver_entry("cuDevicePrimaryCtxRetain", &retain);
  driver_entry("cuCtxSetCurrent", &set);
  call(init(0), "start the driver");
  call(get(&device, ordinal), "find the device");
  call(retain(&context, device), "make a context");
  call(set(context), "enter the context");
}

static void *upload(void const *host, size_t bytes) { /* a copy on the device */
  int (*allocate)(uint64_t *, size_t), (*copy)(uint64_t, void const *, size_t);
  uint64_t address;
  driver_entry("cuMemAlloc_v2", &allocate);
  driver_entry("cuMemcpyHtoD_v2", &copy);
  call(allocate(&address, bytes), "allocate");
  call(copy(address, host, bytes), "copy to the device");
  return (void *)(uintptr_t)address;
}

static void download(void *host, void const *device, size_t bytes) { /* after everything that was launched */
  int (*synchronize)(void), (*copy)(void *, uint64_t, size_t);
  driver_entry("cuCtxSynchronize", &synchronize);
  driver_entry("cuMemcpyDtoH_v2", &copy);
  call(synchronize(), "run the kernel");
  call(copy(host, (uintptr_t)device, bytes), "copy from the device");
}

static void release(void const *device) {
  int (*release_memory)(uint64_t);
  driver_entry("cuMemFree_v2", &release_memory);
  call(release_memory((uintptr_t)device), "free memory");
}

#endif
