// What a kernel's accesses cost on a GPU, counted on their real addresses, line by line of its text.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include <executor/findings.hpp>
#include <executor/operation.hpp>

namespace hgemm::executor {

inline char const* name_of(Kind kind) {
  static char const* const names[] = {
      "load", "store", "fetch_add", "global_fence",
      "cp_async", "cp_async_commit", "cp_async_wait",
      "mbarrier_init", "mbarrier_init_fence", "mbarrier_arrive", "mbarrier_arrive_after_copies", "mbarrier_wait",
      "tma_prefetch", "tma_load", "tma_store", "tma_store_commit", "tma_store_wait_read", "async_proxy_fence",
      "next_launch_may_begin", "await_previous_launches",
      "barrier_sync", "barrier_arrive", "warp_barrier", "elect_one", "cluster_arrive", "cluster_wait",
      "ldmatrix", "stmatrix", "wmma_load", "mma", "wgmma_fence", "wgmma", "wgmma_commit", "wgmma_wait", "setmaxnreg"};
  static_assert(sizeof(names) / sizeof(names[0]) == size_t(Kind::count), "a name for each kind");
  return names[size_t(kind)];
}

// The addresses of one warp instruction's lanes; lanes that do not take part have none.
struct Addresses {
  uintptr_t of[32];
  uint32_t lanes = 0;  // mask

  void add(int lane, void const* address) {
    of[lane] = reinterpret_cast<uintptr_t>(address);
    lanes |= 1u << lane;
  }
};

struct SiteCost {
  Site site;
  Kind kind;
  bool shared = false, global = false;
  uint64_t requests = 0, wavefronts = 0, ideal_wavefronts = 0, sectors = 0, ideal_sectors = 0, bytes = 0;
};

// Shared memory serves 128 bytes at once, one word of 4 from each of 32 banks: so many lanes of an instruction make one
// phase, and a phase takes as many wavefronts as the fullest bank has different words.
// Source: CUDA C++ Programming Guide, "Shared Memory" of compute capability 5.x and later.
inline void count_wavefronts(Addresses const& addresses, uint32_t bytes, SiteCost& cost) {
  int const lanes = bytes <= 4 ? 32 : 128 / int(bytes);
  int const words = bytes <= 4 ? 1 : int(bytes) / 4;
  for (int first = 0; first < 32; first += lanes) {
    uint32_t const phase = (lanes == 32 ? ~0u : (1u << lanes) - 1) << first & addresses.lanes;
    if (!phase) continue;
    uintptr_t seen[32];  // piece of each lane so far, once each
    int distinct = 0, fill[32] = {}, fullest = 1;
    for (uint32_t rest = phase; rest; rest &= rest - 1) {
      uintptr_t const piece = addresses.of[__builtin_ctz(rest)] / (uint32_t(words) * 4);
      int at = distinct - 1;
      while (at >= 0 && seen[at] != piece) --at;
      if (at >= 0) continue;
      seen[distinct++] = piece;
      int& filled = fill[piece % uint32_t(32 / words)];  // pieces are aligned: their banks are the same or disjoint
      if (++filled > fullest) fullest = filled;
    }
    cost.wavefronts += uint64_t(fullest);
    ++cost.ideal_wavefronts;
  }
}

// Global memory moves sectors of 32 bytes; no fewer can do than the different bytes fill.
inline void count_sectors(Addresses const& addresses, uint32_t bytes, SiteCost& cost) {
  uintptr_t sectors[64], pieces[32];
  int sector_count = 0, piece_count = 0;
  auto add = [](uintptr_t* list, int& count, uintptr_t value) {
    for (int i = count - 1; i >= 0; --i) {
      if (list[i] == value) return;
    }
    list[count++] = value;
  };
  for (uint32_t rest = addresses.lanes; rest; rest &= rest - 1) {
    uintptr_t const address = addresses.of[__builtin_ctz(rest)];
    add(pieces, piece_count, address);
    add(sectors, sector_count, address / 32);
    add(sectors, sector_count, (address + bytes - 1) / 32);
  }
  cost.sectors += uint64_t(sector_count);
  cost.ideal_sectors += (uint64_t(piece_count) * bytes + 31) / 32;
}

class Costs {
 public:
  // The number of an operation's line in `sites`, small and stable.
  uint16_t index_of(Operation const& operation) {
    size_t slot = (size_t(operation.site.line) * 31 + size_t(operation.kind)) % slots;
    for (;; slot = (slot + 1) % slots) {
      uint16_t const found = slots_[slot];
      if (found == 0) {
        sites.push_back({operation.site, operation.kind});
        slots_[slot] = uint16_t(sites.size() - 1);
        return slots_[slot];
      }
      SiteCost const& cost = sites[found];
      if (cost.site.line == operation.site.line && cost.kind == operation.kind && cost.site.file == operation.site.file) {
        return found;
      }
    }
  }

  std::string json() const {
    std::string result;
    for (SiteCost const& cost : sites) {
      if (!cost.shared && !cost.global) continue;
      result += result.empty() ? "" : ", ";
      char const* const space = cost.shared && cost.global ? "both" : cost.shared ? "shared" : "global";
      result += "{\"file\": " + quoted(base_name(cost.site.file)) + ", \"line\": " + std::to_string(cost.site.line) +
                ", \"kind\": " + quoted(name_of(cost.kind)) + ", \"space\": " + quoted(space);
      auto number = [&](char const* name, uint64_t value) {
        result += std::string(", \"") + name + "\": " + std::to_string(value);
      };
      number("requests", cost.requests);
      number("wavefronts", cost.wavefronts);
      number("ideal_wavefronts", cost.ideal_wavefronts);
      number("sectors", cost.sectors);
      number("ideal_sectors", cost.ideal_sectors);
      number("bytes", cost.bytes);
      result += "}";
    }
    return "[" + result + "]";
  }

  // The first is nobody's. A deque: references to a site outlive the next one's coming.
  std::deque<SiteCost> sites = {SiteCost{{nullptr, 0}, Kind::count}};

 private:
  static constexpr size_t slots = 4096;  // more than any kernel has lines
  std::vector<uint16_t> slots_ = std::vector<uint16_t>(slots);
};

// Counts of what has no line of its own.
class Counters {
 public:
  void add(std::string const& name, uint64_t by = 1) { values_[name] += by; }
  std::string json() const {
    std::string result;
    for (auto const& [name, value] : values_) {
      result += (result.empty() ? "" : ", ") + quoted(name) + ": " + std::to_string(value);
    }
    return "{" + result + "}";
  }

 private:
  std::map<std::string, uint64_t> values_;
};

}  // namespace hgemm::executor
