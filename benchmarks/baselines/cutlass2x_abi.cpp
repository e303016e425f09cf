// The C interface of the baseline library: a flat list of (kernel, raster width), for ctypes.

#include "cutlass2x.h"

#include <algorithm>
#include <string>
#include <vector>

namespace {

constexpr int kMaxRasterLog = 3;  // widths 1, 2, 4 and 8: what CUTLASS's profiler tries

struct Entry {
  baseline::Kernel kernel;
  int raster_log;
  std::string name;
};

// A function's static: kernels enlist from static initialisers, whose order across objects is not fixed.
std::vector<Entry>& entries() {
  static std::vector<Entry> list;
  return list;
}

const Entry* find(int index) {
  const auto& list = entries();
  return index >= 0 && std::size_t(index) < list.size() ? &list[std::size_t(index)] : nullptr;
}

constexpr int kInvalidValue = 1;  // cudaErrorInvalidValue

}  // namespace

void baseline::enlist(const Kernel& kernel) {
  auto& list = entries();
  for (int raster_log = 0; raster_log <= kMaxRasterLog; ++raster_log)
    list.push_back({kernel, raster_log, std::string(kernel.name) + "_sw" + std::to_string(1 << raster_log)});
  std::sort(list.begin(), list.end(), [](const Entry& x, const Entry& y) { return x.name < y.name; });
}

extern "C" {

int cutlass2x_count() { return int(entries().size()); }

const char* cutlass2x_name(int index) {
  const Entry* entry = find(index);
  return entry ? entry->name.c_str() : "";
}

int cutlass2x_acc(int index) {
  const Entry* entry = find(index);
  return entry ? entry->kernel.accumulator_bits : 0;
}

/// Returns a cudaError_t. Call it once for an entry on the device's thread before the first run or capture.
int cutlass2x_init(int index) {
  const Entry* entry = find(index);
  return entry ? entry->kernel.init() : kInvalidValue;
}

/// Returns a cudaError_t. `stream` is a cudaStream_t; leading dimensions are in elements.
int cutlass2x_run(int index, int m, int n, int k, const void* a, const void* b, void* d, long lda, long ldb, long ldd,
                  void* stream) {
  const Entry* entry = find(index);
  if (!entry) return kInvalidValue;
  return entry->kernel.run({m, n, k, a, b, d, lda, ldb, ldd}, entry->raster_log, stream);
}

}  // extern "C"
