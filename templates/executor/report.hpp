// The report of a run: findings (rule violations) and costs (memory requests, bytes, instruction counts).
#pragma once

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <deque>
#include <map>
#include <string>
#include <vector>

#include <executor/operation.hpp>

namespace hgemm::executor {

// ---- Findings ------------------------------------------------------------------------------------------------------

inline std::string base_name(char const* path) {
  if (!path) return "";
  char const* const slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

inline std::string quoted(std::string const& text) {
  std::string result = "\"";
  for (char const c : text) {
    if (c == '"' || c == '\\') result += '\\';
    if (static_cast<unsigned char>(c) >= ' ') {
      result += c;
    } else {
      result += ' ';
    }
  }
  return result + '"';
}

__attribute__((format(printf, 1, 2))) inline std::string text(char const* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  char buffer[1024];
  vsnprintf(buffer, sizeof buffer, format, arguments);
  va_end(arguments);
  return buffer;
}

class Findings {
 public:
  // Counts an occurrence. `say` makes the message, for the first occurrence of its kind and line only.
  template <class Say>
  void add(char const* kind, Site site, Say say) {
    for (Finding& finding : all_) {
      if (finding.site.line != site.line || strcmp(finding.kind, kind) != 0) continue;
      if (finding.site.file != site.file && base_name(finding.site.file) != base_name(site.file)) continue;
      ++finding.count;
      return;
    }
    all_.push_back({kind, site, 1, say()});
  }
  bool empty() const { return all_.empty(); }

  std::string json() const {
    std::string result;
    for (Finding const& finding : all_) {
      result += result.empty() ? "" : ", ";
      result += "{\"kind\": " + quoted(finding.kind) + ", \"count\": " + std::to_string(finding.count) +
                ", \"message\": " + quoted(finding.message) + ", \"file\": " + quoted(base_name(finding.site.file)) +
                ", \"line\": " + std::to_string(finding.site.line) + "}";
    }
    return "[" + result + "]";
  }

 private:
  struct Finding {
    char const* kind;
    Site site;
    uint64_t count;
    std::string message;
  };
  std::vector<Finding> all_;
};

// ---- Costs on a GPU, counted on the real addresses, by source line -------------------------------------------------

inline char const* name_of(Kind kind) {
  static char const* const names[] = {
      "load", "store", "fetch_add", "global_fence",
      "cp_async", "cp_async_commit", "cp_async_wait",
      "mbarrier_init", "mbarrier_init_fence", "mbarrier_arrive", "mbarrier_arrive_after_copies", "mbarrier_wait", "mbarrier_test",
      "store_async",
      "tma_prefetch", "tma_load", "tma_store", "tma_store_commit", "tma_store_wait_read", "async_proxy_fence",
      "next_launch_may_begin", "await_previous_launches",
      "barrier_sync", "barrier_arrive", "warp_barrier", "elect_one", "shuffle", "vote", "cluster_arrive", "cluster_wait",
      "ldmatrix", "stmatrix", "wmma_load", "mma", "wgmma_fence", "wgmma", "wgmma_commit", "wgmma_wait", "setmaxnreg"};
  static_assert(sizeof(names) / sizeof(names[0]) == size_t(Kind::count), "a name for each kind");
  return names[size_t(kind)];
}

// The addresses of one warp instruction. `lanes` is the mask of the lanes that take part.
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

// Shared memory transfers 128 bytes at a time: one 4-byte word from each of 32 banks. The lanes that access 128 bytes form a
// phase. A phase takes as many wavefronts as the most used bank has different words.
// Source: CUDA C++ Programming Guide, "Shared Memory" of compute capability 5.x and later.
inline void count_wavefronts(Addresses const& addresses, uint32_t bytes, SiteCost& cost) {
  int const lanes = bytes <= 4 ? 32 : 128 / int(bytes);
  int const words = bytes <= 4 ? 1 : int(bytes) / 4;
  for (int first = 0; first < 32; first += lanes) {
    uint32_t const phase = (lanes == 32 ? ~0u : (1u << lanes) - 1) << first & addresses.lanes;
    if (!phase) continue;
    uintptr_t seen[32];  // distinct vectors of the lanes so far
    int distinct = 0, fill[32] = {}, fullest = 1;
    for (uint32_t rest = phase; rest; rest &= rest - 1) {
      uintptr_t const vector = addresses.of[__builtin_ctz(rest)] / (uint32_t(words) * 4);
      int& filled = fill[vector % uint32_t(32 / words)];  // vectors are aligned, so their banks are the same or disjoint
      int at = filled ? distinct - 1 : -1;
      while (at >= 0 && seen[at] != vector) --at;
      if (at >= 0) continue;
      seen[distinct++] = vector;
      if (++filled > fullest) fullest = filled;
    }
    cost.wavefronts += uint64_t(fullest);
    ++cost.ideal_wavefronts;
  }
}

// Global memory transfers sectors of 32 bytes. The ideal count is the number of sectors that the distinct bytes fill.
inline void count_sectors(Addresses const& addresses, uint32_t bytes, SiteCost& cost) {
  uintptr_t sectors[64], vectors[32];
  int sector_count = 0, vector_count = 0;
  bool rising = true;  // as most addresses do: then a larger value is a new one
  auto add = [&](uintptr_t* list, int& count, uintptr_t value) {
    if (!count || !rising || value <= list[count - 1]) {
      for (int i = count - 1; i >= 0; --i) {
        if (list[i] == value) return;
      }
      rising &= !count;
    }
    list[count++] = value;
  };
  for (uint32_t rest = addresses.lanes; rest; rest &= rest - 1) {
    uintptr_t const address = addresses.of[__builtin_ctz(rest)];
    add(vectors, vector_count, address);
    add(sectors, sector_count, address / 32);
    add(sectors, sector_count, (address + bytes - 1) / 32);
  }
  cost.sectors += uint64_t(sector_count);
  cost.ideal_sectors += (uint64_t(vector_count) * bytes + 31) / 32;
}

class Costs {
 public:
  // Returns the index of an operation's source line in `sites`.
  uint16_t site_index(Operation const& operation) {
    Site const site = operation.site;  // lanes of a warp ask for the same one
    if (last_site_.line != site.line || last_kind_ != operation.kind || last_site_.file != site.file) {
      last_ = find(operation);
      last_site_ = site;
      last_kind_ = operation.kind;
    }
    return last_;
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

  // Index 0 is unused. A deque, because references must stay valid when it grows.
  std::deque<SiteCost> sites = {SiteCost{{nullptr, 0}, Kind::count}};

 private:
  uint16_t find(Operation const& operation) {
    for (size_t slot = slot_of(operation.site, operation.kind);; slot = (slot + 1) % slots_.size()) {
      uint16_t const found = slots_[slot];
      if (found == 0) {
        sites.push_back({operation.site, operation.kind});
        slots_[slot] = uint16_t(sites.size() - 1);
        if (sites.size() * 2 > slots_.size()) grow();
        return uint16_t(sites.size() - 1);
      }
      SiteCost const& cost = sites[found];
      if (cost.site.line == operation.site.line && cost.kind == operation.kind && cost.site.file == operation.site.file) {
        return found;
      }
    }
  }
  size_t slot_of(Site site, Kind kind) const { return (size_t(site.line) * 31 + size_t(kind)) % slots_.size(); }
  void grow() {
    slots_.assign(slots_.size() * 2, 0);
    for (size_t i = 1; i < sites.size(); ++i) {
      size_t slot = slot_of(sites[i].site, sites[i].kind);
      while (slots_[slot]) slot = (slot + 1) % slots_.size();
      slots_[slot] = uint16_t(i);
    }
  }

  std::vector<uint16_t> slots_ = std::vector<uint16_t>(4096);  // at most half of them are in use
  uint16_t last_ = 0;  // the index found last, and its site
  Site last_site_ = {nullptr, 0};
  Kind last_kind_ = Kind::count;
};

// Counters that do not belong to a source line.
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
