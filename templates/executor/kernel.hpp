// Calls a kernel with type-erased parameters: the executor runs `Kernel::call` in each fiber.
#pragma once

#include <string.h>

#include <utility>

#include <executor/abi.h>

namespace hgemm::executor {

struct Kernel {
  void (*call)(void const* const* parameters);
  uint32_t parameter_count;
  uint64_t const* parameter_bytes;
};

template <auto KERNEL, class Signature>
struct Caller;
template <auto KERNEL, class... Parameters>
struct Caller<KERNEL, void (*)(Parameters...)> {
  static constexpr uint64_t bytes[] = {sizeof(Parameters)..., 0};

  template <class T>
  static T copy_of(void const* parameter) {
    T value;
    memcpy(static_cast<void*>(&value), parameter, sizeof(T));
    return value;
  }
  template <size_t... I>
  static void spread(void const* const* parameters, std::index_sequence<I...>) {
    KERNEL(copy_of<Parameters>(parameters[I])...);
  }
  static void call(void const* const* parameters) { spread(parameters, std::index_sequence_for<Parameters...>()); }
};

template <auto KERNEL>
constexpr Kernel kernel_of() {
  using Call = Caller<KERNEL, decltype(KERNEL)>;
  return {Call::call, sizeof(Call::bytes) / sizeof(uint64_t) - 1, Call::bytes};
}

int emulate(hgemm_emulation const& request, Kernel const& kernel, char* report_json, size_t capacity);

}  // namespace hgemm::executor
