// The source of a variant's shared object: the emitted kernel, unchanged, and hgemm_emulate. See abi.h for the build commands.
#include HGEMM_VARIANT_FILE

#include <executor/kernel.hpp>

extern "C" int hgemm_emulate(hgemm_emulation const* request, char* report_json, size_t capacity) {
  return hgemm::executor::emulate(*request, hgemm::executor::kernel_of<HGEMM_VARIANT>(), report_json, capacity);
}
