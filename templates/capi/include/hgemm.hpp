// C++17 wrapper of hgemm.h: a handle that closes itself, and exceptions instead of status codes.
#ifndef HGEMM_HPP
#define HGEMM_HPP

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "hgemm.h"

namespace hgemm {

// A failed call. what() has the status text and the details of the call.
class Error : public std::runtime_error {
 public:
  explicit Error(hgemm_status status)
      : std::runtime_error(std::string(hgemm_status_string(status)) + ": " + hgemm_last_message()), status_(status) {}

  hgemm_status status() const noexcept { return status_; }

 private:
  hgemm_status status_;
};

inline void check(hgemm_status status) {
  if (status != HGEMM_OK) throw Error(status);
}

// An hgemm_problem with default values: f16, TN, f32 accumulation, batch 1, alpha 1, beta 0.
struct Problem : hgemm_problem {
  Problem() { hgemm_problem_init(static_cast<hgemm_problem*>(this)); }
};

// An open GPU. Movable. Several threads may use one handle. Every method throws Error if its call fails.
class Handle {
 public:
  explicit Handle(int device = 0) {
    hgemm_handle* opened = nullptr;
    check(hgemm_create(&opened, device));
    handle_.reset(opened);
  }

  // Launches the problem on a stream and does not wait for it.
  void run(hgemm_problem const& problem, void* stream = nullptr) const { check(hgemm_run(handle_.get(), &problem, stream)); }

  // Loads the kernel that run() would launch. Call it before stream capture.
  void prepare(hgemm_problem const& problem) const { check(hgemm_prepare(handle_.get(), &problem)); }

  // Sets the size of the workspaces, and frees those that exist. 0 is none.
  void set_workspace_size(std::uint64_t bytes) { check(hgemm_set_workspace_size(handle_.get(), bytes)); }

  // Makes launches on a stream use the caller's memory. Null returns to a workspace of the handle.
  void set_workspace(void* stream, void* workspace, std::uint64_t bytes) {
    check(hgemm_set_workspace(handle_.get(), stream, workspace, bytes));
  }

  // Allocates workspaces until `count` are in reserve. Call it before launches are captured on several streams.
  void reserve_workspaces(std::uint32_t count) { check(hgemm_reserve_workspaces(handle_.get(), count)); }

  // Returns which kernel run() would launch and how much workspace it needs.
  hgemm_choice select(hgemm_problem const& problem) const {
    hgemm_choice choice{};
    check(hgemm_select(handle_.get(), &problem, &choice));
    return choice;
  }

  hgemm_handle* get() const noexcept { return handle_.get(); }

 private:
  struct Destroy {
    void operator()(hgemm_handle* handle) const noexcept { hgemm_destroy(handle); }
  };
  std::unique_ptr<hgemm_handle, Destroy> handle_;
};

// Returns all kernels of the library.
inline std::vector<hgemm_kernel> list() {
  std::vector<hgemm_kernel> kernels(hgemm_list(nullptr, 0));
  hgemm_list(kernels.data(), kernels.size());
  return kernels;
}

}  // namespace hgemm

#endif
