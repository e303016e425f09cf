/* Error texts: one line for each status, and the message of the last error of each thread. */
#include <stdarg.h>
#include <stdio.h>

#include "internal.h"

enum { MESSAGE_BYTES = 640 };

static _Thread_local char message[MESSAGE_BYTES];

static char const *const lines[] = {
    "HGEMM_OK: success",
    "HGEMM_ERROR_NO_DRIVER: the NVIDIA driver is missing or too old",
    "HGEMM_ERROR_NO_DEVICE: this machine has no NVIDIA GPU",
    "HGEMM_ERROR_WRONG_DEVICE: no GPU has this number, or no context is current",
    "HGEMM_ERROR_UNSUPPORTED_DEVICE: no kernel of this library runs on this GPU",
    "HGEMM_ERROR_NULL_ARGUMENT: the handle, the problem or the result is null",
    "HGEMM_ERROR_STRUCT_SIZE: struct_size does not match any version that this library knows",
    "HGEMM_ERROR_UNKNOWN_VALUE: layout, dtype, acc, bias_kind, activation, flags or epilogue has no such value",
    "HGEMM_ERROR_SIZE: m, n, k or batch is negative or too large, or a matrix is too large",
    "HGEMM_ERROR_POINTER: the pointer of a required operand is null",
    "HGEMM_ERROR_ALIGNMENT: a pointer is not a multiple of its element size",
    "HGEMM_ERROR_LEADING_DIMENSION: a leading dimension is smaller than the row length",
    "HGEMM_ERROR_BATCH_STRIDE: a batch stride is negative",
    "HGEMM_ERROR_OVERLAP: D overlaps an input, another matrix of its batch, or the workspace",
    "HGEMM_ERROR_WORKSPACE: the workspace is misaligned or too small",
    "HGEMM_ERROR_NO_KERNEL: no kernel of this library supports this problem on this GPU",
    "HGEMM_ERROR_IMAGE: a kernel image inside the library is corrupt",
    "HGEMM_ERROR_DRIVER: a CUDA driver call failed",
    "HGEMM_ERROR_MEMORY: out of host memory, or no device memory for a workspace",
    "HGEMM_ERROR_CAPTURE: the stream is captured, and no workspace is in reserve",
};

hgemm_status hgemm_fail(hgemm_status status, char const *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  return status;
}

char const *hgemm_last_message(void) { return message; }

char const *hgemm_status_string(hgemm_status status) {
  size_t const number = (size_t)status;
  return number < sizeof lines / sizeof *lines ? lines[number] : "unknown status";
}

char const *hgemm_version(void) { return HGEMM_VERSION_TEXT; }
