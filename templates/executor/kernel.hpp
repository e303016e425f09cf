// Calls a kernel with type-erased parameters: the executor runs `Kernel::call` in each fiber.
#pragma once

#include <executor/abi.h>

namespace hgemm::executor {

struct Kernel {
  void (*call)(void const* const* parameters);
  uint32_t parameter_count;
  uint64_t const* parameter_bytes;
  uint8_t const* seen;  // of each instruction with a predicate: bit 0 if that was false, bit 1 if it was true
  size_t seen_count;
};

int emulate(hgemm_emulation const& request, Kernel const& kernel, char* report_json, size_t capacity);

}  // namespace hgemm::executor
