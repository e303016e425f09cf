/* What is told of errors: a line a status, and a message a thread. */
#include <stdarg.h>
#include <stdio.h>

#include "internal.h"

enum { MESSAGE_BYTES = 640 };

static _Thread_local char message[MESSAGE_BYTES];

static char const *const lines[] = {
    "HGEMM_OK: done",
    "HGEMM_ERROR_NO_DRIVER: the NVIDIA driver, libcuda.so.1, is not installed here, or is too old",
    "HGEMM_ERROR_NO_DEVICE: there is no NVIDIA GPU here",
    "HGEMM_ERROR_WRONG_DEVICE: there is no GPU of this number, or no context is current",
    "HGEMM_ERROR_UNSUPPORTED_DEVICE: no kernel of this library runs on that GPU",
    "HGEMM_ERROR_NULL_ARGUMENT: a handle, problem or result is null",
    "HGEMM_ERROR_STRUCT_SIZE: the problem's size is of no version that this library knows",
    "HGEMM_ERROR_UNKNOWN_VALUE: a layout, type, accumulation, bias or activation is unknown",
    "HGEMM_ERROR_SIZE: m, n, k or batch is negative or too large, or a matrix spans too much",
    "HGEMM_ERROR_POINTER: an operand has no pointer",
    "HGEMM_ERROR_ALIGNMENT: a pointer is not a multiple of its element's size",
    "HGEMM_ERROR_LEADING_DIMENSION: a leading dimension is less than the contiguous elements",
    "HGEMM_ERROR_BATCH_STRIDE: a batch stride is negative",
    "HGEMM_ERROR_OVERLAP: D overlaps what is read, itself, or the workspace",
    "HGEMM_ERROR_WORKSPACE: the workspace is missing, misaligned or too small",
    "HGEMM_ERROR_NO_KERNEL: no kernel of this library computes such a problem on that GPU",
    "HGEMM_ERROR_IMAGE: a kernel inside the library is damaged",
    "HGEMM_ERROR_DRIVER: the driver refused",
    "HGEMM_ERROR_MEMORY: the host has no memory left",
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
