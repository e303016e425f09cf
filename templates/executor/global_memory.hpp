// Global memory of a launch: the regions of the request, their access rights, and the elements that were written.
#pragma once

#include <string>
#include <vector>

#include <executor/abi.h>
#include <executor/report.hpp>
#include <executor/numbers.hpp>
#include <executor/race_detection.hpp>

namespace hgemm::executor {

class GlobalMemory {
 public:
  // A region of the request.
  struct Region {
    hgemm_region is;
    uintptr_t begin, end;
    Shadow shadow;                         // of [begin & ~15, end), for HGEMM_WRITABLE
    std::vector<uint8_t> writes;           // per element, for HGEMM_WRITE_ONCE
    uintptr_t row_begin = 0, row_end = 0;  // of the row that was accessed last
    uintptr_t matrix_end = 0;              // of the matrix with that row

    bool has(uint32_t flag) const { return is.flags & flag; }
    bool holds(uintptr_t address) const { return address >= begin && address < end; }
    char const* name() const { return is.name ? is.name : "a region"; }

    // Position of an address in `shadow`. If the rows are far apart, the shadow leaves out the padding between them.
    size_t offset(uintptr_t address) const {
      if (!sparse()) return address - (begin & ~uintptr_t(15));
      uint64_t const from_begin = address - begin;
      uint64_t const batch = is.batches > 1 ? from_begin / is.batch_stride_bytes : 0;
      uint64_t const within = from_begin - batch * is.batch_stride_bytes;
      uint64_t const row = is.rows > 1 ? within / is.pitch_bytes : 0, column = within - row * is.pitch_bytes;
      return (batch * is.rows + row) * sparse_pitch() + ((address - column) & 15) + column;
    }
    size_t element_index(uintptr_t address) const { return offset(address) / is.element_bytes; }
    size_t shadow_bytes() const { return sparse() ? is.batches * is.rows * sparse_pitch() : offset(end); }

    // Whether an address lies in a row, not in the padding after it.
    bool in_a_row(uintptr_t address) const {
      uint64_t const within = is.batches > 1 ? (address - begin) % is.batch_stride_bytes : address - begin;
      uint64_t const row = is.rows > 1 ? std::min(within / is.pitch_bytes, is.rows - 1) : 0;
      return within - row * is.pitch_bytes < is.row_bytes;
    }

   private:
    bool sparse() const { return end - begin > uintptr_t(1) << 30; }
    size_t sparse_pitch() const { return (is.row_bytes + 31) & ~size_t(15); }
  };

  explicit GlobalMemory(hgemm_emulation const& request) {
    for (uint32_t i = 0; i < request.region_count; ++i) add(request.regions[i]);
  }

  // Returns why [address, address + bytes) must not be read or written, or an empty string.
  std::string access_error(uintptr_t address, uint32_t bytes, bool write) {
    for (Region& region : regions) {
      if (region.holds(address) && allows(region, address, bytes, write)) return "";
    }
    return explain(address, bytes, write);
  }

  // Counts a write of elements that must be written exactly once. Returns an error, or an empty string.
  std::string count_element_writes(Region& region, uintptr_t address, uint32_t bytes) {
    std::string again;
    uint8_t* writes = &region.writes[region.element_index(address)];
    for (uintptr_t at = address; at < address + bytes; at += region.is.element_bytes, ++writes) {
      if (*writes < 255) ++*writes;
      if (*writes > 1 && again.empty()) again = element(region, at) + " is written again";
    }
    return again;
  }

  // Returns the first element that was not written, or an empty string. Adds their number to `count`.
  std::string unwritten_element(Region const& region, uint64_t& count) const {
    std::string first;
    for (uint64_t batch = 0; batch < region.is.batches; ++batch) {
      for (uint64_t row = 0; row < region.is.rows; ++row) {
        uintptr_t const begin = region.begin + batch * region.is.batch_stride_bytes + row * region.is.pitch_bytes;
        uint8_t const* const writes = &region.writes[region.element_index(begin)];
        for (uint64_t i = 0; i * region.is.element_bytes < region.is.row_bytes; ++i) {
          if (writes[i]) continue;
          ++count;
          if (first.empty()) first = element(region, begin + i * region.is.element_bytes);
        }
      }
    }
    return first;
  }

  // Returns the name of the first element of `value` that is poison, or an empty string.
  static std::string poisoned_element(Region const& region, uintptr_t address, unsigned char const* value, uint32_t bytes) {
    for (uint32_t at = 0; at < bytes; at += region.is.element_bytes) {
      uint32_t bits = 0;
      memcpy(&bits, value + at, region.is.element_bytes < 4 ? region.is.element_bytes : 4);
      bool const poison = region.is.element_bytes == 2 ? is_poison_half(uint16_t(bits))
                          : region.is.element_bytes == 4 && is_poison_float(bits);
      if (poison) return element(region, address + at);
    }
    return "";
  }

  // "D[batch 1][row 3][column 5]"
  static std::string element(Region const& region, uintptr_t address) {
    uint64_t offset = address - region.begin;
    std::string result = region.name();
    if (region.is.batches > 1) {
      result += text("[batch %llu]", static_cast<unsigned long long>(offset / region.is.batch_stride_bytes));
      offset %= region.is.batch_stride_bytes;
    }
    uint64_t const row = region.is.rows > 1 ? offset / region.is.pitch_bytes : 0;
    uint64_t const column = (offset - row * region.is.pitch_bytes) / region.is.element_bytes;
    return result +
           text("[row %llu][column %llu]", static_cast<unsigned long long>(row), static_cast<unsigned long long>(column));
  }

  std::vector<Region> regions;

 private:
  void add(hgemm_region is) {
    if (!is.rows || !is.row_bytes || !is.batches) return;
    if (is.batch_stride_bytes == 0) is.batches = 1;
    if (is.element_bytes == 0) is.element_bytes = 1;
    uintptr_t const begin = reinterpret_cast<uintptr_t>(is.base);
    uint64_t const span = (is.batches - 1) * is.batch_stride_bytes + (is.rows - 1) * is.pitch_bytes + is.row_bytes;
    regions.push_back({is, begin, begin + span, {}, {}});
    Region& region = regions.back();
    if (region.has(HGEMM_WRITABLE)) region.shadow.reset(region.shadow_bytes(), region.has(HGEMM_INITIALISED));
    if (region.has(HGEMM_WRITE_ONCE)) region.writes.assign(region.shadow_bytes() / is.element_bytes + 1, 0);
  }

  static bool allows(Region& region, uintptr_t address, uint32_t bytes, bool write) {
    if (!region.has(write ? HGEMM_WRITABLE : HGEMM_READABLE)) return false;
    if (address < region.row_begin || address >= region.row_end) find_row(region, address);
    bool const in_row = address >= region.row_begin && address + bytes <= region.row_begin + region.is.row_bytes;
    bool const in_padding = !write && region.has(HGEMM_PADDING_READABLE) && address + bytes <= region.row_end;
    bool const in_matrix = !write && region.has(HGEMM_MATRIX_READABLE) && address + bytes <= region.matrix_end;
    return in_row || in_matrix || (in_padding && address + bytes <= region.end);
  }

  // row_end is the beginning of the next row or matrix. matrix_end is the end of the last row of this matrix.
  static void find_row(Region& region, uintptr_t address) {
    uint64_t const offset = address - region.begin;
    uint64_t const batch = region.is.batches > 1 ? std::min(offset / region.is.batch_stride_bytes, region.is.batches - 1) : 0;
    uint64_t const within = offset - batch * region.is.batch_stride_bytes;
    uint64_t const row = region.is.rows > 1 ? std::min(within / region.is.pitch_bytes, region.is.rows - 1) : 0;
    uintptr_t const matrix_begin = region.begin + batch * region.is.batch_stride_bytes;
    region.row_begin = matrix_begin + row * region.is.pitch_bytes;
    region.matrix_end = matrix_begin + (region.is.rows - 1) * region.is.pitch_bytes + region.is.row_bytes;
    region.row_end = row + 1 < region.is.rows          ? region.row_begin + region.is.pitch_bytes
                     : batch + 1 < region.is.batches ? region.begin + (batch + 1) * region.is.batch_stride_bytes
                                                     : region.end;
  }

  std::string explain(uintptr_t address, uint32_t bytes, bool write) {
    char const* const what = write ? "write" : "read";
    for (Region& region : regions) {
      if (!region.holds(address)) continue;
      std::string const at = element(region, address);
      if (!region.has(write ? HGEMM_WRITABLE : HGEMM_READABLE)) {
        return text("%s of %u bytes at %s, which does not allow it", what, bytes, at.c_str());
      }
      return text("%s of %u bytes at %s exceeds its row of %llu bytes", what, bytes, at.c_str(),
                  static_cast<unsigned long long>(region.is.row_bytes));
    }
    Region const* nearest = nullptr;
    for (Region const& region : regions) {
      if (!nearest || distance(region, address) < distance(*nearest, address)) nearest = &region;
    }
    if (!nearest) return text("%s of %u bytes at an address outside all regions", what, bytes);
    return text("%s of %u bytes outside all regions, %llu bytes %s %s", what, bytes,
                static_cast<unsigned long long>(distance(*nearest, address)),
                address < nearest->begin ? "before" : "past the end of", nearest->name());
  }
  static uint64_t distance(Region const& region, uintptr_t address) {
    return address < region.begin ? region.begin - address : address - region.end;
  }
};

}  // namespace hgemm::executor
