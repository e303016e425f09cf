// Launches one problem through hgemm.hpp, and is refused another; see tests/test_export_programs.py.
#include <cstdio>
#include <utility>

#include "hgemm.hpp"

int main() {
  hgemm::Handle first(0);
  hgemm::Handle const handle = std::move(first);
  hgemm::Problem problem;
  problem.m = problem.n = problem.k = 64;
  problem.lda = problem.ldb = problem.ldd = 64;
  problem.a = reinterpret_cast<void*>(0x100000000);
  problem.b = reinterpret_cast<void*>(0x200000000);
  problem.d = reinterpret_cast<void*>(0x300000000);
  if (handle.select(problem).kernel < 0 || hgemm::list().empty()) return 1;
  handle.prepare(problem);
  handle.run(problem);
  std::puts("launched");
  problem.lda = 1;
  try {
    handle.run(problem);
  } catch (hgemm::Error const& error) {
    std::printf("%.*s\n", 29, error.what());
    return error.status() == HGEMM_ERROR_LEADING_DIMENSION ? 0 : 2;
  }
  return 3;
}
