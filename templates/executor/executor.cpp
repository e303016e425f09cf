// The executor as one object file. It is compiled once and linked into the shared object of each kernel; see abi.h.
#include <atomic>
#include <new>

#include <executor/machine.hpp>

#include <executor/lifecycle.hpp>
#include <executor/scheduler.hpp>
#include <executor/access.hpp>
#include <executor/async_copies.hpp>
#include <executor/barriers.hpp>
#include <executor/wgmma.hpp>
#include <executor/execute.hpp>
#include <executor/ptx_operations.hpp>

namespace hgemm::executor {

std::string Machine::report() const {
  Counters counters = counters_;
  if (mma_counts_[0]) counters.add("mma_m16n8k16", mma_counts_[0]);
  if (mma_counts_[1]) counters.add("mma_m16n8k8", mma_counts_[1]);
  if (tf32_mma_count_) counters.add("mma_m16n8k8_tf32", tf32_mma_count_);
  uint64_t copied = 0, read = 0, written = 0, shared_read = 0, shared_written = 0;
  for (SiteCost const& cost : costs_.sites) {
    if (cost.kind == Kind::cp_async) copied += cost.bytes;
    if (cost.kind == Kind::load) (cost.shared ? shared_read : read) += cost.bytes;
    if (cost.kind == Kind::store) (cost.shared ? shared_written : written) += cost.bytes;
    if (cost.kind == Kind::ldmatrix || cost.kind == Kind::wgmma) shared_read += cost.bytes;
    if (cost.kind == Kind::stmatrix) shared_written += cost.bytes;
    if (cost.kind == Kind::tma_load) copied += cost.bytes;
    if (cost.kind == Kind::tma_store) written += cost.bytes;
    bool const counted = cost.kind == Kind::warp_barrier || cost.kind == Kind::global_fence || cost.kind == Kind::fetch_add;
    if (counted) counters.add(name_of(cost.kind), cost.requests);
  }
  counters.add("bytes_global_to_shared", copied);
  counters.add("bytes_global_read", read);
  counters.add("bytes_global_written", written);
  counters.add("bytes_shared_read", shared_read);
  counters.add("bytes_shared_written", shared_written);
  counters.add("steps", steps_);
  std::string predicates;
  for (size_t i = 0; i < kernel_.seen_count; ++i) predicates += char('0' + kernel_.seen[i]);
  return "{\"predicates\": " + quoted(predicates) + ", \"findings\": " + findings_.json() + ", \"sites\": " + costs_.json() + ", \"counters\": " + counters.json() + "}";
}

namespace {

constexpr uint32_t max_ctas = 1 << 24, max_cluster_ctas = 16;  // more CTAs take days

bool product_exceeds(uint32_t const (&extents)[3], uint32_t limit) {
  uint64_t product = 1;
  for (uint32_t extent : extents) {
    if (extent > limit || (product *= extent) > limit) return true;
  }
  return false;
}

// Returns what is wrong with a request, or an empty string.
std::string request_error(hgemm_emulation const& request, Kernel const& kernel) {
  if (request.version != HGEMM_ABI_VERSION) return text("version is %u and must be %d", request.version, HGEMM_ABI_VERSION);
  if (request.threads == 0 || request.threads % 32 || request.threads > 1024) {
    return "threads must be a multiple of 32 up to 1024";
  }
  if (request.block[0] && uint64_t(request.block[0]) * request.block[1] * request.block[2] != request.threads) {
    return "threads must be the product of block";
  }
  if (request.shared_bytes > 232448) return "shared_bytes exceeds the limit of 232448";
  for (int i = 0; i < 3; ++i) {
    if (!request.grid[i] || !request.cluster[i] || request.grid[i] % request.cluster[i]) {
      return "grid must be a multiple of cluster";
    }
  }
  if (product_exceeds(request.grid, max_ctas)) return text("grid has more CTAs than the limit of %u", max_ctas);
  if (product_exceeds(request.cluster, max_cluster_ctas)) {
    return text("cluster has more CTAs than the limit of %u", max_cluster_ctas);
  }
  if (request.parameter_count != kernel.parameter_count) {
    return text("the kernel takes %u parameters, the request has %u", kernel.parameter_count, request.parameter_count);
  }
  for (uint32_t i = 0; i < kernel.parameter_count; ++i) {
    if (request.parameter_bytes[i] == kernel.parameter_bytes[i]) continue;
    return text("parameter %u of the kernel has %llu bytes, that of the request %llu", i,
                static_cast<unsigned long long>(kernel.parameter_bytes[i]),
                static_cast<unsigned long long>(request.parameter_bytes[i]));
  }
  if (request.timing > HGEMM_ANY_TIME || request.order > HGEMM_ANY_ORDER) return "timing or order is not in its enumeration";
  return "";
}

int write_report(std::string const& report, char* report_json, size_t capacity) {
  if (!capacity) return HGEMM_REPORT_TOO_LONG;
  size_t const bytes = std::min(report.size(), capacity - 1);
  memcpy(report_json, report.data(), bytes);
  report_json[bytes] = 0;
  return bytes == report.size() ? HGEMM_EMULATED : HGEMM_REPORT_TOO_LONG;
}

int run(hgemm_emulation const& request, Kernel const& kernel, char* report_json, size_t capacity) {
  try {
    Machine launch(request, kernel);
    launch.run();
    return write_report(launch.report(), report_json, capacity);
  } catch (std::bad_alloc const&) {
    write_report("{\"error\": \"out of memory: reduce resident_ctas\"}", report_json, capacity);
    return HGEMM_BAD_REQUEST;
  }
}

}  // namespace

int emulate(hgemm_emulation const& request, Kernel const& kernel, char* report_json, size_t capacity) {
  static std::atomic_flag busy = ATOMIC_FLAG_INIT;
  if (busy.test_and_set()) {
    write_report("{\"error\": \"another thread runs this kernel\"}", report_json, capacity);
    return HGEMM_BUSY;
  }
  int status = HGEMM_BAD_REQUEST;
  std::string const wrong = request_error(request, kernel);
  if (!wrong.empty()) {
    write_report("{\"error\": " + quoted(wrong) + "}", report_json, capacity);
  } else {
    status = run(request, kernel, report_json, capacity);
  }
  busy.clear();
  return status;
}

}  // namespace hgemm::executor
