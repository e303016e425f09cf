// What is known about each piece of a memory: who wrote it last, and who has read it since.
//
// Memory is divided into lines of 16 bytes. A line that is always accessed as a whole has one cell; narrower accesses divide
// it into cells of 8, 4 or 2 bytes until it is next written as a whole.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <vector>

#include <executor/clock.hpp>

namespace hgemm::executor {

enum class Clash : uint8_t { none, uninitialised, write, read };

// The first thing wrong with an access: what it clashes with, and where.
struct Conflict {
  Clash clash = Clash::none;
  Access with;
  size_t offset = 0;
};

class Shadow {
 public:
  static constexpr size_t line_bytes = 16;

  // Forgets everything; the memory has `bytes`, which hold values before anybody writes if `initialised`.
  void reset(size_t bytes, bool initialised) {
    lines_.assign((bytes + line_bytes - 1) / line_bytes, Line());
    divided_.clear();
    free_parts_.clear();
    crowds_.clear();
    free_crowds_.clear();
    initialised_ = initialised;
  }

  // Notes that `me` reads [offset, offset + bytes), as ordered by what `reader` knows; calls visit(last write, offset) for
  // each cell.
  template <class Visit>
  Conflict read(size_t offset, size_t bytes, Knowledge const& reader, Access const& me, Visit visit) {
    Conflict conflict;
    each_cell(offset, bytes, [&](Cell& cell, size_t at) {
      visit(cell.write, at);
      if (conflict.clash == Clash::none) {
        if (cell.write.epoch == 0 && !initialised_) {
          conflict = {Clash::uninitialised, {}, at};
        } else if (!reader.knows(cell.write)) {
          conflict = {Clash::write, cell.write, at};
        }
      }
      note_read(cell, reader, me);
    });
    return conflict;
  }
  Conflict read(size_t offset, size_t bytes, Knowledge const& reader, Access const& me) {
    return read(offset, bytes, reader, me, [](Access const&, size_t) {});
  }

  // The same for a write. Atomic operations on one address put each other in order: `atomic` passes over earlier ones.
  Conflict write(size_t offset, size_t bytes, Knowledge const& writer, Access const& me, bool atomic = false) {
    Conflict conflict;
    if (offset % line_bytes == 0 && bytes % line_bytes == 0) {
      for (size_t at = offset; at < offset + bytes; at += line_bytes) {
        Line& line = lines_[at / line_bytes];
        for_cells(line, at, at, at + line_bytes,
                  [&](Cell& cell, size_t where) { check_write(cell, where, writer, conflict); });
        make_whole(line);
        overwrite(line.cell, me, atomic);
      }
    } else {
      each_cell(offset, bytes, [&](Cell& cell, size_t at) {
        if (!(atomic && cell.atomic)) check_write(cell, at, writer, conflict);
        overwrite(cell, me, atomic);
      });
    }
    return conflict;
  }

 private:
  static constexpr int inline_reads = 3;

  struct Cell {
    Access write;
    Access reads[inline_reads];
    uint32_t crowd = 0;  // 1 + index of more reads in crowds_
    uint8_t read_count = 0;
    bool atomic = false;  // the last write was
  };
  struct Line {
    Cell cell;
    uint32_t parts = 0;  // 1 + index in divided_
    uint8_t log2_cells = 0;
  };
  struct Parts { Cell cell[8]; };

  template <class Visit>
  void each_cell(size_t offset, size_t bytes, Visit visit) {
    size_t const end = offset + bytes;
    for (size_t at = offset; at < end;) {
      size_t const first = at / line_bytes * line_bytes;
      size_t const until = std::min(first + line_bytes, end);
      Line& line = lines_[at / line_bytes];
      divide(line, (at | (until - first == line_bytes ? 0 : until)) % line_bytes);
      for_cells(line, first, at, until, visit);
      at = until;
    }
  }

  template <class Visit>
  void for_cells(Line& line, size_t first, size_t begin, size_t end, Visit visit) {
    if (!line.parts) {
      visit(line.cell, first);
      return;
    }
    int const shift = 4 - line.log2_cells;
    Parts& parts = divided_[line.parts - 1];
    for (size_t i = (begin - first) >> shift; i < ((end - first - 1) >> shift) + 1; ++i) {
      visit(parts.cell[i], first + (i << shift));
    }
  }

  // Makes the line's cells small enough to begin at `edges` (the bits of all offsets within the line that cells must begin
  // at).
  void divide(Line& line, size_t edges) {
    int const needed = edges == 0 ? 0 : edges % 8 == 0 ? 1 : edges % 4 == 0 ? 2 : 3;
    if (needed <= line.log2_cells) return;
    if (!line.parts) {
      line.parts = take(divided_, free_parts_);
      divided_[line.parts - 1].cell[0] = line.cell;
    }
    Parts& parts = divided_[line.parts - 1];
    int const times = needed - line.log2_cells;
    for (int i = (1 << needed) - 1; i > 0; --i) {
      Cell const& whole = parts.cell[i >> times];
      parts.cell[i] = whole;
      if (whole.crowd && i % (1 << times)) {
        parts.cell[i].crowd = take(crowds_, free_crowds_);
        crowds_[parts.cell[i].crowd - 1] = crowds_[whole.crowd - 1];
      }
    }
    line.log2_cells = uint8_t(needed);
  }

  void make_whole(Line& line) {
    for (int i = 0; line.parts && i < 1 << line.log2_cells; ++i) leave_crowd(divided_[line.parts - 1].cell[i]);
    if (line.parts) line.cell.crowd = 0;  // it was the first part's
    if (line.parts) free_parts_.push_back(line.parts);
    line.parts = 0;
    line.log2_cells = 0;
  }

  // Returns 1 + the index of an element that nobody uses.
  template <class T>
  static uint32_t take(std::vector<T>& pool, std::vector<uint32_t>& free) {
    if (free.empty()) {
      pool.emplace_back();
      return uint32_t(pool.size());
    }
    uint32_t const found = free.back();
    free.pop_back();
    return found;
  }
  void leave_crowd(Cell& cell) {
    if (!cell.crowd) return;
    crowds_[cell.crowd - 1].clear();
    free_crowds_.push_back(cell.crowd);
    cell.crowd = 0;
  }

  // A write that comes after a thread's read comes after the reads that the thread knew of, too: those need not be kept.
  void note_read(Cell& cell, Knowledge const& reader, Access const& me) {
    bool const itself = me.agent == reader.thread && me.cta == reader.cta;
    int kept = 0;
    for (int i = 0; i < cell.read_count; ++i) {
      Access const& earlier = cell.reads[i];
      bool const same = earlier.agent == me.agent && earlier.cta == me.cta;
      if (!same && !(itself && reader.knows(earlier))) cell.reads[kept++] = earlier;
    }
    if (kept < inline_reads) {
      cell.reads[kept++] = me;
    } else {
      if (!cell.crowd) cell.crowd = take(crowds_, free_crowds_);
      auto& crowd = crowds_[cell.crowd - 1];
      bool found = false;
      for (Access& earlier : crowd) {
        if (earlier.agent != me.agent || earlier.cta != me.cta) continue;
        earlier = me;
        found = true;
      }
      if (!found) crowd.push_back(me);
    }
    cell.read_count = uint8_t(kept);
  }

  void check_write(Cell const& cell, size_t at, Knowledge const& writer, Conflict& conflict) const {
    if (conflict.clash != Clash::none) return;
    if (!writer.knows(cell.write)) conflict = {Clash::write, cell.write, at};
    auto check = [&](Access const& read) {
      if (!writer.knows(read)) conflict = {Clash::read, read, at};
    };
    for (int i = 0; i < cell.read_count; ++i) check(cell.reads[i]);
    if (cell.crowd) {
      for (Access const& read : crowds_[cell.crowd - 1]) check(read);
    }
  }

  void overwrite(Cell& cell, Access const& me, bool atomic) {
    leave_crowd(cell);
    cell.read_count = 0;
    cell.write = me;
    cell.atomic = atomic;
  }

  std::vector<Line> lines_;
  std::vector<Parts> divided_;
  std::vector<std::vector<Access>> crowds_;
  std::vector<uint32_t> free_parts_, free_crowds_;  // 1 + index
  bool initialised_ = false;
};

}  // namespace hgemm::executor
