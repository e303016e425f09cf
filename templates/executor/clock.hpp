// Vector clocks: what a thread knows to have happened.
//
// An agent is whatever accesses memory by itself: a thread, or the asynchronous copies of one. Agents count epochs; an access
// is stamped with its agent and the agent's epoch, and it happened before a thread's present if the thread knows that epoch.
// Knowledge is kept for one CTA's agents at a time, in immutable arrays that threads share: after a barrier all of them hold
// the same one. What a thread knows of itself is not in there, but in its Knowledge.
#pragma once

#include <stdint.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace hgemm::executor {

constexpr uint16_t no_agent = 0xffff;
constexpr uint32_t previous_launches = 0xffffffff;  // in the place of a CTA: epoch 1 of its agent 0 is their end

struct Access {
  uint32_t epoch = 0;  // 0: none
  uint32_t cta = 0;
  uint16_t agent = 0;
  uint16_t site = 0;
};

// An object that counts who holds it. One thread of the host runs everything, so that plain counts do.
template <class T>
class Held {
 public:
  Held() = default;
  explicit Held(T* object) : object_(object) { ++object_->holders; }
  Held(Held const& other) : object_(other.object_) {
    if (object_) ++object_->holders;
  }
  Held(Held&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Held& operator=(Held other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Held() {
    if (object_ && --object_->holders == 0) delete object_;
  }
  T* operator->() const { return object_; }
  T* get() const { return object_; }
  explicit operator bool() const { return object_; }

 private:
  T* object_ = nullptr;
};

// The epochs known of one CTA's agents; those past the end are 0.
struct Epochs {
  int holders = 0;
  uint32_t cta = 0;
  std::vector<uint32_t> known;
};

// Epochs of every CTA that anything is known of.
struct Clock {
  int holders = 0;
  std::vector<Held<Epochs>> ctas;

  Epochs const* of(uint32_t cta) const {
    for (auto const& epochs : ctas) {
      if (epochs->cta == cta) return epochs.get();
    }
    return nullptr;
  }
};

// Whether all that `less` knows is known to `more`.
inline bool covers(Clock const* more, Clock const* less) {
  if (more == less || !less) return true;
  for (auto const& part : less->ctas) {
    Epochs const* const epochs = more ? more->of(part->cta) : nullptr;
    if (epochs == part.get()) continue;
    for (size_t i = 0; i < part->known.size(); ++i) {
      if (part->known[i] > (epochs && i < epochs->known.size() ? epochs->known[i] : 0)) return false;
    }
  }
  return true;
}

struct Knowledge {
  uint32_t cta = 0;
  uint16_t thread = 0;
  uint16_t copies = no_agent;  // agent of its asynchronous copies, once it has any
  uint32_t epoch = 1;          // its own present
  uint32_t copies_landed = 0;  // epoch of the last of its copies that it has waited for
  Held<Clock> clock;
  Epochs const* own_cta = nullptr;  // in `clock`

  void learn(Held<Clock> const& what) {
    clock = what;
    own_cta = clock ? clock->of(cta) : nullptr;
  }

  uint32_t known_of(uint32_t other_cta, uint16_t agent) const {
    if (other_cta == cta) {
      if (agent == thread) return epoch;
      uint32_t const told = own_cta && agent < own_cta->known.size() ? own_cta->known[agent] : 0;
      return agent == copies ? std::max(told, copies_landed) : told;
    }
    Epochs const* const epochs = clock ? clock->of(other_cta) : nullptr;
    return epochs && agent < epochs->known.size() ? epochs->known[agent] : 0;
  }
  bool knows(Access const& access) const { return access.epoch <= known_of(access.cta, access.agent); }
};

// Adds up what several threads know.
class Joined {
 public:
  void add(Held<Clock> const& clock) {
    if (!clock || clock.get() == latest_.get()) return;
    latest_ = clock;
    for (auto const& epochs : clock->ctas) add(epochs);
  }
  void add(Knowledge const& thread) {
    add(thread.clock);
    set(thread.cta, thread.thread, thread.epoch);
    if (thread.copies != no_agent) set(thread.cta, thread.copies, thread.copies_landed);
  }
  void set(uint32_t cta, uint16_t agent, uint32_t epoch) {
    auto& known = writable(cta).known;
    if (known.size() <= agent) known.resize(agent + 1);
    known[agent] = std::max(known[agent], epoch);
  }
  Held<Clock> clock() {
    Held<Clock> result(new Clock);
    for (auto& part : parts_) result->ctas.push_back(part.epochs);
    parts_.clear();
    latest_ = Held<Clock>();
    return result;
  }

 private:
  struct Part {
    Held<Epochs> epochs;
    bool shared;  // with clocks that exist: not to be changed
  };

  void add(Held<Epochs> const& epochs) {
    for (auto& part : parts_) {
      if (part.epochs->cta != epochs->cta) continue;
      if (part.epochs.get() == epochs.get()) return;
      auto& known = own(part).known;
      auto const& more = epochs->known;
      if (known.size() < more.size()) known.resize(more.size());
      for (size_t i = 0; i < more.size(); ++i) known[i] = std::max(known[i], more[i]);
      return;
    }
    parts_.push_back({epochs, true});
  }
  Epochs& writable(uint32_t cta) {
    for (auto& part : parts_) {
      if (part.epochs->cta == cta) return own(part);
    }
    parts_.push_back({Held<Epochs>(new Epochs), false});
    parts_.back().epochs->cta = cta;
    return *parts_.back().epochs.get();
  }
  static Epochs& own(Part& part) {
    if (part.shared) {
      Epochs* const copy = new Epochs;
      copy->cta = part.epochs->cta;
      copy->known = part.epochs->known;
      part = {Held<Epochs>(copy), false};
    }
    return *part.epochs.get();
  }

  std::vector<Part> parts_;
  Held<Clock> latest_;  // that was added
};

// Adds the same to what many threads know, of whom most know the same: those then share one clock.
class Learning {
 public:
  Learning() = default;
  explicit Learning(Held<Clock> what) : what_(std::move(what)) {}

  Clock const* what() const { return what_.get(); }

  void teach(Knowledge& thread) {
    if (!result_ || thread.clock.get() != before_.get()) {
      Joined joined;
      joined.add(thread.clock);
      joined.add(what_);
      before_ = thread.clock;
      result_ = joined.clock();
    }
    thread.learn(result_);
  }

 private:
  Held<Clock> what_, before_, result_;
};

}  // namespace hgemm::executor
