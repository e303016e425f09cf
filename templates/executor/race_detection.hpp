// Race detection: vector clocks say which accesses are ordered, and shadow memory remembers the last accesses of each byte.
//
// An agent is anything that accesses memory: a thread, the cp.async of a thread, the TMA stores of a thread, the TMA loads of
// an mbarrier, or the wgmmas of a warpgroup. Each agent counts epochs. An access carries its agent and epoch. It happened
// before a thread's present if the thread knows that epoch of the agent. Synchronization transfers knowledge between threads.
//
// Knowledge is stored per CTA in immutable arrays that threads share: after a barrier, all threads hold the same array. A
// thread's own epoch is in its Knowledge, not in the array.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <algorithm>
#include <utility>
#include <vector>

#include <executor/numbers.hpp>

namespace hgemm::executor {

// ---- Vector clocks -------------------------------------------------------------------------------------------------

constexpr uint16_t no_agent = 0xffff;
// What is known by a synchronization in the scope of a CTA with another CTA has this bit in the number of its CTA. It orders later
// writes, but reads need not see earlier writes.
constexpr uint32_t for_writes = 0x80000000;
constexpr uint32_t previous_launches = 0x7fffffff;  // a pseudo CTA; epoch 1 of its agent 0 is the end of all previous launches

struct Access {
  uint32_t epoch = 0;  // 0: none
  uint32_t cta = 0;
  uint16_t agent = 0;
  uint16_t site = 0;
};

// A reference-counted pointer. The count is not atomic, because one host thread runs everything.
template <class T>
class Ref {
 public:
  Ref() = default;
  explicit Ref(T* object) : object_(object) { ++object_->references; }
  Ref(Ref const& other) : object_(other.object_) {
    if (object_) ++object_->references;
  }
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() {
    if (object_ && --object_->references == 0) delete object_;
  }
  T* operator->() const { return object_; }
  T* get() const { return object_; }
  explicit operator bool() const { return object_; }

 private:
  T* object_ = nullptr;
};

// Known epochs of one CTA's agents. Agents past the end have epoch 0. Several clocks may share them.
struct Epochs {
  int references = 0;
  std::vector<uint32_t> known;

  uint32_t of(size_t agent) const { return agent < known.size() ? known[agent] : 0; }
};

// A vector clock: the known epochs of all CTAs.
struct Clock {
  struct Part {
    uint32_t cta;
    Ref<Epochs> epochs;
  };

  int references = 0;
  std::vector<Part> parts;

  Epochs const* of(uint32_t cta) const {
    for (auto const& part : parts) {
      if (part.cta == cta) return part.epochs.get();
    }
    return nullptr;
  }
};

// Whether an element of one array exceeds that of another, and the reverse. 0: none does.
struct Excess {
  uint32_t one, other;
};
HGEMM_CLONES static Excess compare(uint32_t const* one, uint32_t const* other, size_t count) {
  uint32_t more = 0, less = 0;
  for (size_t i = 0; i < count; ++i) {
    uint32_t const most = std::max(one[i], other[i]);
    more |= most ^ other[i];
    less |= most ^ one[i];
  }
  return {more, less};
}
HGEMM_CLONES static void raise(uint32_t* to, uint32_t const* from, size_t count) {
  for (size_t i = 0; i < count; ++i) to[i] = std::max(to[i], from[i]);
}

// Tells whether `more` contains all that `less` knows.
inline bool covers(Clock const* more, Clock const* less) {
  if (more == less || !less) return true;
  for (auto const& part : less->parts) {
    Epochs const* const epochs = more ? more->of(part.cta) : nullptr;
    if (epochs == part.epochs.get()) continue;
    auto const& known = part.epochs->known;
    for (size_t i = 0; i < known.size(); ++i) {
      if (known[i] > (epochs ? epochs->of(i) : 0)) return false;
    }
  }
  return true;
}

// What one thread knows.
struct Knowledge {
  uint32_t cta = 0;
  uint16_t thread = 0;
  uint16_t copies = no_agent;     // agent of its cp.async, if it has any
  uint32_t epoch = 1;             // the thread's own epoch
  uint32_t copies_completed = 0;  // epoch of its last cp.async that it has waited for
  Ref<Clock> clock;
  Epochs const* own_cta = nullptr;  // its CTA's part of `clock`

  void learn(Ref<Clock> const& what) {
    clock = what;
    own_cta = clock ? clock->of(cta) : nullptr;
  }

  uint32_t known_of(uint32_t other_cta, uint16_t agent) const {
    if (other_cta == cta) {
      if (agent == thread) return epoch;
      uint32_t const known = own_cta ? own_cta->of(agent) : 0;
      return agent == copies ? std::max(known, copies_completed) : known;
    }
    Epochs const* const epochs = clock ? clock->of(other_cta) : nullptr;
    return epochs ? epochs->of(agent) : 0;
  }
  bool knows(Access const& access) const { return access.epoch <= known_of(access.cta, access.agent); }
  // Whether a write of the thread is ordered after an access.
  bool writes_after(Access const& access) const { return access.epoch <= known_for_writes(access.cta, access.agent); }
  uint32_t known_for_writes(uint32_t other_cta, uint16_t agent) const {
    return std::max(known_of(other_cta, agent), known_of(other_cta | for_writes, agent));
  }
};

// Builds the union of several clocks. Parts that know the most stay shared, so that later unions find that they are the same.
class ClockUnion {
 public:
  void add(Ref<Clock> const& clock) {
    if (!clock || clock.get() == latest_.get()) return;
    latest_ = clock;
    for (auto const& part : clock->parts) add(part.cta, part.epochs);
  }
  // `only_for_writes`: the knowledge only orders writes, except that of previous launches.
  void add(Knowledge const& thread, bool only_for_writes = false) {
    uint32_t const mark = only_for_writes ? for_writes : 0;
    if (!only_for_writes) {
      add(thread.clock);
    } else if (thread.clock) {
      latest_ = Ref<Clock>();
      for (auto const& part : thread.clock->parts) {
        add(part.cta == previous_launches ? part.cta : part.cta | for_writes, part.epochs);
      }
    }
    set(thread.cta | mark, thread.thread, thread.epoch);
    if (thread.copies != no_agent) set(thread.cta | mark, thread.copies, thread.copies_completed);
  }
  void set(uint32_t cta, uint16_t agent, uint32_t epoch) {
    Part* const part = find(cta);
    if (part && epoch <= part->epochs->of(agent)) return;
    auto& known = writable(part, cta).known;
    if (known.size() <= agent) known.resize(agent + 1);
    known[agent] = epoch;
  }
  bool empty() const { return parts_.empty(); }
  Ref<Clock> clock() {
    Ref<Clock> result(new Clock);
    result->parts.reserve(parts_.size());
    for (auto& part : parts_) result->parts.push_back({part.cta, std::move(part.epochs)});
    parts_.clear();
    latest_ = Ref<Clock>();
    return result;
  }

 private:
  struct Part {
    uint32_t cta;
    bool shared;  // also used by other clocks, so it must not be changed
    Ref<Epochs> epochs;
  };

  Part* find(uint32_t cta) {
    for (auto& part : parts_) {
      if (part.cta == cta) return &part;
    }
    return nullptr;
  }
  void add(uint32_t cta, Ref<Epochs> const& epochs) {
    Part* const part = find(cta);
    if (!part) {
      parts_.push_back({cta, true, epochs});
      return;
    }
    if (part->epochs.get() == epochs.get()) return;
    auto const& more = epochs->known;
    if (part->shared) {
      auto const& known = part->epochs->known;
      size_t const both = std::min(known.size(), more.size());
      Excess const excess = compare(known.data(), more.data(), both);
      if (!excess.other && more.size() == both) return;
      if (!excess.one && known.size() == both) {
        part->epochs = epochs;
        return;
      }
    }
    auto& known = writable(part, cta).known;
    if (known.size() < more.size()) known.resize(more.size());
    raise(known.data(), more.data(), more.size());
  }
  Epochs& writable(Part* part, uint32_t cta) {
    if (!part) {
      parts_.push_back({cta, false, Ref<Epochs>(new Epochs)});
      part = &parts_.back();
    } else if (part->shared) {
      Ref<Epochs> copy(new Epochs);
      copy->known = part->epochs->known;
      part->epochs = std::move(copy);
      part->shared = false;
    }
    return *part->epochs.get();
  }

  std::vector<Part> parts_;
  Ref<Clock> latest_;  // the clock that was added last
};

// Adds the same clock to the knowledge of many threads. Threads that knew the same before share one result.
class ClockUpdate {
 public:
  ClockUpdate() = default;
  explicit ClockUpdate(Ref<Clock> what) : what_(std::move(what)) {}

  Clock const* what() const { return what_.get(); }

  void apply(Knowledge& thread) {
    if (!result_ || thread.clock.get() != before_.get()) {
      ClockUnion joined;
      joined.add(thread.clock);
      joined.add(what_);
      before_ = thread.clock;
      result_ = joined.clock();
    }
    thread.learn(result_);
  }

 private:
  Ref<Clock> what_, before_, result_;
};

// ---- Shadow memory -------------------------------------------------------------------------------------------------

enum class ConflictKind : uint8_t { none, uninitialised, write, read };

// The first conflict of an access: its kind, the other access, and the offset.
struct Conflict {
  ConflictKind clash = ConflictKind::none;
  Access with;
  size_t offset = 0;
};

class Shadow {
 public:
  static constexpr size_t line_bytes = 16;

  // Clears everything. The memory has `bytes` bytes. If `initialised`, it may be read before it is written.
  void reset(size_t bytes, bool initialised) {
    size_t const count = (bytes + line_bytes - 1) / line_bytes;
    if (count != lines_.size()) {
      lines_.assign(count, Line());
      touched_.assign(count / block_lines + 1, 0);
    }
    for (size_t block = 0; block < touched_.size(); ++block) {
      if (!touched_[block]) continue;
      touched_[block] = 0;
      auto const first = lines_.begin() + std::ptrdiff_t(block * block_lines);
      std::fill(first, first + std::ptrdiff_t(std::min(block_lines, count - block * block_lines)), Line());
    }
    divided_.clear();
    free_parts_.clear();
    more_reads_.clear();
    free_more_reads_.clear();
    initialised_ = initialised;
  }

  // Records that `me` reads [offset, offset + bytes). It is ordered after what `reader` knows. Calls visit(last write, offset)
  // for each cell.
  template <class RemoteAccess>
  Conflict read(size_t offset, size_t bytes, Knowledge const& reader, Access const& me, RemoteAccess visit) {
    Conflict conflict;
    each_cell(offset, bytes, [&](Cell& cell, size_t at) {
      visit(cell.write, at);
      if (conflict.clash == ConflictKind::none) {
        if (cell.write.epoch == 0 && !initialised_) {
          conflict = {ConflictKind::uninitialised, {}, at};
        } else if (!reader.knows(cell.write)) {
          conflict = {ConflictKind::write, cell.write, at};
        }
      }
      note_read(cell, reader, me);
    });
    return conflict;
  }
  Conflict read(size_t offset, size_t bytes, Knowledge const& reader, Access const& me) {
    return read(offset, bytes, reader, me, [](Access const&, size_t) {});
  }

  // The same for a line of 16 bytes whose last write is `known` as a whole, which `reader` knows. Otherwise returns false, and
  // does nothing.
  bool read_line(size_t offset, Knowledge const& reader, Access const& me, Access const& known) {
    Line& line = touch(offset);
    Access const& write = line.cell.write;
    if (line.parts || write.epoch != known.epoch || write.agent != known.agent || write.cta != known.cta) return false;
    note_read(line.cell, reader, me);
    return true;
  }
  void prefetch(size_t offset) const {
    if (offset / line_bytes < lines_.size()) __builtin_prefetch(&lines_[offset / line_bytes]);
  }
  // Returns the last write of a line as a whole, or one of epoch 0.
  Access last_write(size_t offset) const {
    Line const& line = lines_[offset / line_bytes];
    return line.parts ? Access() : line.cell.write;
  }

  // Records a write. Atomics on the same address are ordered, so an `atomic` write ignores earlier atomics. Calls
  // visit(earlier access, offset) for the last write and the reads since of each cell.
  template <class EarlierAccess>
  Conflict write(size_t offset, size_t bytes, Knowledge const& writer, Access const& me, bool atomic, EarlierAccess visit) {
    Conflict conflict;
    if (offset % line_bytes == 0 && bytes % line_bytes == 0) {
      Cell checked;  // the last one: most neighbours of a line have the same accesses, which need one check
      bool has_checked = false;
      for (size_t at = offset; at < offset + bytes; at += line_bytes) {
        Line& line = touch(at);
        if (!has_checked || line.parts || !has_accesses_of(line.cell, checked)) {
          for_cells(line, at, at, at + line_bytes,
                    [&](Cell& cell, size_t where) { check_write(cell, where, writer, conflict, visit); });
          has_checked = !line.parts;
          checked = line.cell;
        }
        make_whole(line);
        overwrite(line.cell, me, atomic);
      }
    } else {
      each_cell(offset, bytes, [&](Cell& cell, size_t at) {
        if (!(atomic && cell.atomic)) check_write(cell, at, writer, conflict, visit);
        overwrite(cell, me, atomic);
      });
    }
    return conflict;
  }
  Conflict write(size_t offset, size_t bytes, Knowledge const& writer, Access const& me, bool atomic = false) {
    return write(offset, bytes, writer, me, atomic, [](Access const&, size_t) {});
  }

 private:
  static constexpr int inline_reads = 3;
  static constexpr size_t block_lines = 64;

  struct Cell {
    Access write;
    Access reads[inline_reads];
    uint32_t more_reads = 0;  // 1 + index in more_reads_, for more than inline_reads reads
    uint8_t read_count = 0;
    bool atomic = false;  // the last write was an atomic
  };
  struct Line {
    Cell cell;
    uint32_t parts = 0;  // 1 + index in divided_
    uint8_t log2_cells = 0;
  };
  struct Parts { Cell cell[8]; };

  static bool same(Access const& one, Access const& other) {
    return one.epoch == other.epoch && one.cta == other.cta && one.agent == other.agent && one.site == other.site;
  }
  // Tells whether a cell has the same accesses as another one, all of them inline.
  static bool has_accesses_of(Cell const& cell, Cell const& other) {
    if (cell.more_reads || other.more_reads || cell.read_count != other.read_count || !same(cell.write, other.write)) return false;
    for (int i = 0; i < cell.read_count; ++i) {
      if (!same(cell.reads[i], other.reads[i])) return false;
    }
    return true;
  }

  // Returns the line at an offset, which `reset` will clear.
  Line& touch(size_t offset) {
    size_t const at = offset / line_bytes;
    touched_[at / block_lines] = 1;
    return lines_[at];
  }

  template <class RemoteAccess>
  void each_cell(size_t offset, size_t bytes, RemoteAccess visit) {
    size_t const end = offset + bytes;
    for (size_t at = offset; at < end;) {
      size_t const first = at / line_bytes * line_bytes;
      size_t const until = std::min(first + line_bytes, end);
      Line& line = touch(at);
      divide(line, (at | (until - first == line_bytes ? 0 : until)) % line_bytes);
      for_cells(line, first, at, until, visit);
      at = until;
    }
  }

  template <class RemoteAccess>
  void for_cells(Line& line, size_t first, size_t begin, size_t end, RemoteAccess visit) {
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

  // Splits the line into cells small enough that a cell begins at each edge. `edges` is the bitwise or of their offsets.
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
      if (whole.more_reads && i % (1 << times)) {
        parts.cell[i].more_reads = take(more_reads_, free_more_reads_);
        more_reads_[parts.cell[i].more_reads - 1] = more_reads_[whole.more_reads - 1];
      }
    }
    line.log2_cells = uint8_t(needed);
  }

  void make_whole(Line& line) {
    for (int i = 0; line.parts && i < 1 << line.log2_cells; ++i) clear_more_reads(divided_[line.parts - 1].cell[i]);
    if (line.parts) line.cell.more_reads = 0;  // it belonged to the first part
    if (line.parts) free_parts_.push_back(line.parts);
    line.parts = 0;
    line.log2_cells = 0;
  }

  // Returns 1 + the index of an unused element.
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
  void clear_more_reads(Cell& cell) {
    if (!cell.more_reads) return;
    more_reads_[cell.more_reads - 1].clear();
    free_more_reads_.push_back(cell.more_reads);
    cell.more_reads = 0;
  }

  // Drops earlier reads that the reading thread knows of: a write that is ordered after this read is ordered after them, too.
  void note_read(Cell& cell, Knowledge const& reader, Access const& me) {
    if (cell.read_count == 1 && cell.reads[0].agent == me.agent && cell.reads[0].cta == me.cta) {
      cell.reads[0] = me;
      return;
    }
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
      if (!cell.more_reads) cell.more_reads = take(more_reads_, free_more_reads_);
      auto& more_reads = more_reads_[cell.more_reads - 1];
      bool found = false;
      for (Access& earlier : more_reads) {
        if (earlier.agent != me.agent || earlier.cta != me.cta) continue;
        earlier = me;
        found = true;
      }
      if (!found) more_reads.push_back(me);
    }
    cell.read_count = uint8_t(kept);
  }

  template <class EarlierAccess>
  void check_write(Cell const& cell, size_t at, Knowledge const& writer, Conflict& conflict, EarlierAccess& visit) const {
    if (conflict.clash != ConflictKind::none) return;
    visit(cell.write, at);
    if (!writer.writes_after(cell.write)) conflict = {ConflictKind::write, cell.write, at};
    auto check = [&](Access const& read) {
      visit(read, at);
      if (!writer.writes_after(read)) conflict = {ConflictKind::read, read, at};
    };
    for (int i = 0; i < cell.read_count; ++i) check(cell.reads[i]);
    if (cell.more_reads) {
      for (Access const& read : more_reads_[cell.more_reads - 1]) check(read);
    }
  }

  void overwrite(Cell& cell, Access const& me, bool atomic) {
    clear_more_reads(cell);
    cell.read_count = 0;
    cell.write = me;
    cell.atomic = atomic;
  }

  std::vector<Line> lines_;
  std::vector<uint8_t> touched_;  // by blocks of block_lines: whether an access has been recorded
  std::vector<Parts> divided_;
  std::vector<std::vector<Access>> more_reads_;
  std::vector<uint32_t> free_parts_, free_more_reads_;  // 1 + index
  bool initialised_ = false;
};

}  // namespace hgemm::executor
