// One variant as a shared object: its emitted text as it is, and the door to the executor. Built as abi.h says.
#include HGEMM_VARIANT_FILE

#include <executor/kernel.hpp>

extern "C" int hgemm_emulate(hgemm_emulation const* request, char* report_json, size_t capacity) {
  return hgemm::executor::emulate(*request, hgemm::executor::kernel_of<HGEMM_VARIANT>(), report_json, capacity);
}
