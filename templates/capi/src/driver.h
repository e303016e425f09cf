/* The functions of the CUDA driver that this library calls. They are loaded at run time; see driver.c. */
#ifndef HGEMM_DRIVER_H
#define HGEMM_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include "internal.h"

typedef struct hgemm_launch_attribute { /* CUlaunchAttribute */
  uint32_t id, padding;
  int32_t value[16];
} hgemm_launch_attribute;

typedef struct hgemm_launch_config { /* CUlaunchConfig */
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, smem_bytes;
  void *stream;
  hgemm_launch_attribute const *attributes;
  unsigned attribute_count;
} hgemm_launch_config;

typedef struct hgemm_edge_data { /* CUgraphEdgeData */
  unsigned char from_port, to_port, type, reserved[5];
} hgemm_edge_data;

typedef struct hgemm_kernel_node { /* CUDA_KERNEL_NODE_PARAMS_v2 */
  void *function;
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, smem_bytes;
  void **parameters, **extra, *kernel, *context;
} hgemm_kernel_node;

/* Values of CUdevice_attribute, CUfunction_attribute, CUlaunchAttributeID, CUresult, CUstream*, CUgraph* and CUtensorMap* in
 * cuda.h. */
enum {
  HGEMM_CU_MULTIPROCESSOR_COUNT = 16,
  HGEMM_CU_MEMORY_CLOCK_RATE = 36, /* kHz */
  HGEMM_CU_MEMORY_BUS_WIDTH = 37,  /* bits */
  HGEMM_CU_CAPABILITY_MAJOR = 75,
  HGEMM_CU_CAPABILITY_MINOR = 76,
  HGEMM_CU_MAX_SMEM_OPTIN = 97,
  HGEMM_CU_FUNCTION_MAX_DYNAMIC_SMEM = 8,
  HGEMM_CU_LAUNCH_PROGRAMMATIC = 6,
  HGEMM_CU_OUT_OF_MEMORY = 2,
  HGEMM_CU_CAPTURE_RELAXED = 2,
  HGEMM_CU_PER_THREAD = 2, /* the handle of the calling thread's default stream, as a number */
  HGEMM_CU_STREAM_NON_BLOCKING = 1,
  HGEMM_CU_NODE_KERNEL = 0,
  HGEMM_CU_PORT_PROGRAMMATIC = 1, /* 0 is the default port */
  HGEMM_CU_MAP_FLOAT16 = 6,
  HGEMM_CU_MAP_FLOAT32 = 7,
  HGEMM_CU_MAP_BFLOAT16 = 9,
  HGEMM_CU_MAP_TFLOAT32 = 11,
  HGEMM_CU_MAP_L2_128B = 2,
  HGEMM_CU_MAP_L2_256B = 3
};

typedef struct hgemm_driver {
  int (*init)(unsigned flags);
  int (*device_count)(int *count);
  int (*device)(int *device, int ordinal);
  int (*attribute)(int *value, int attribute, int device);
  int (*retain_context)(void **context, int device);
  int (*release_context)(int device);
  int (*current_context)(void **context);
  int (*context_device)(int *device);
  int (*push_context)(void *context);
  int (*pop_context)(void **context);
  int (*load)(void **module, void const *image);
  int (*unload)(void *module);
  int (*function)(void **function, void *module, char const *name);
  int (*set_attribute)(void *function, int attribute, int value);
  int (*resident_ctas)(int *count, void *function, int threads, size_t smem_bytes);
  int (*launch)(hgemm_launch_config const *config, void *function, void **parameters, void **extra);
  int (*zero)(uint64_t address, unsigned char value, size_t bytes, void *stream);
  int (*error_text)(int status, char const **text);
  int (*allocate)(uint64_t *address, size_t bytes);
  int (*release)(uint64_t address);
  int (*allocate_async)(uint64_t *address, size_t bytes, void *stream);
  int (*release_async)(uint64_t address, void *stream);
  int (*create_stream)(void **stream, unsigned flags);
  int (*wait_for_stream)(void *stream);
  int (*destroy_stream)(void *stream);
  int (*is_capturing)(void *stream, int *status);
  int (*exchange_capture_mode)(int *mode);
  /* Null in drivers before CUDA 12. No kernel that runs there needs them. */
  int (*stream_id)(void *stream, unsigned long long *id);
  int (*resident_clusters)(int *count, void *function, hgemm_launch_config const *config);
  int (*encode_map)(void *map, int type, uint32_t rank, void *address, uint64_t const *extents, uint64_t const *strides,
                    uint32_t const *box, uint32_t const *element_strides, int interleave, int swizzle, int l2, int fill);
  /* Null in drivers before CUDA 12.3. Then captured launches are programmatic as others are. */
  int (*capture_info)(void *stream, int *status, uint64_t *id, void **graph, void *const **nodes,
                      hgemm_edge_data const **edges, size_t *count);
  int (*node_type)(void *node, int *type);
  int (*kernel_node)(void *node, hgemm_kernel_node *params);
} hgemm_driver;

/* Loads the driver in the first call of the process, and writes *driver. */
hgemm_status hgemm_open_driver(hgemm_driver const **driver);

/* Fails with the driver's error text. `action` completes the sentence "cannot ...". */
hgemm_status hgemm_fail_driver(hgemm_driver const *driver, int status, char const *action);

#endif
