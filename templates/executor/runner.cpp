// Runs a kernel for the CPU in a process of its own, which shares nothing with its parent but two pipes and the memory of arrays:
//
//     runner KERNEL.so FUNCTION MEMORY_DESCRIPTOR ADDRESS BYTES
//
// The memory is mapped at ADDRESS, as in the parent, so that both use the same addresses. Before the kernel's shared object is
// loaded, the process gives up all other descriptors, lowers its limits and gives up most system calls. Then the kernel can
// compute, and can neither write a file, nor start a process, nor open a connection, nor touch another process.
//
// Requests arrive at stdin and answers leave through stdout; the kernel sees neither under these numbers. A request is a Head,
// the hgemm_emulation, the sizes of its parameters, its regions, then the parameters and the names of the regions. A request
// without a body asks whether FUNCTION of the kernel is loaded. An answer is an AnswerHead and a text: the report, or why nothing ran.

#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <string>
#include <vector>

#include <executor/abi.h>

#if defined(__linux__)
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#endif

namespace {

constexpr int request_pipe = 3, answer_pipe = 4, memory_descriptor = 5;
constexpr size_t largest_request = size_t(1) << 20, largest_report = size_t(1) << 20;
constexpr uint64_t private_bytes = uint64_t(8) << 30;  // addresses beside the shared memory
constexpr uint64_t cpu_seconds = 3600;
constexpr int kept_bytes = 32 << 20;  // the largest that glibc allows

struct Head {
  uint64_t nonce;
  uint64_t bytes;
};

struct AnswerHead {
  uint64_t nonce;
  int32_t status;
  uint32_t bytes;
};

bool read_all(void* to, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    ssize_t const count = read(request_pipe, static_cast<char*>(to) + done, bytes - done);
    if (count <= 0) return false;
    done += size_t(count);
  }
  return true;
}

void write_all(void const* from, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    ssize_t const count = write(answer_pipe, static_cast<char const*>(from) + done, bytes - done);
    if (count <= 0) _exit(1);
    done += size_t(count);
  }
}

void answer(uint64_t nonce, int32_t status, char const* text) {
  AnswerHead const head = {nonce, status, uint32_t(strlen(text))};
  write_all(&head, sizeof head);
  write_all(text, head.bytes);
}

// Keeps freed memory for the next launch, because fresh pages cost more time.
void keep_freed_memory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, kept_bytes);
  mallopt(M_TRIM_THRESHOLD, kept_bytes);
  mallopt(M_TOP_PAD, kept_bytes / 4);
#endif
}

[[noreturn]] void fail(char const* what) {
  perror(what);
  _exit(1);
}

// ---- Confinement ---------------------------------------------------------------------------------------------------

// Keeps the two pipes and the memory under fixed numbers; the standard streams become /dev/null.
void keep_descriptors(int memory) {
  int const kept[] = {0, 1, memory}, wanted[] = {request_pipe, answer_pipe, memory_descriptor};
  int high[3];
  for (int i = 0; i < 3; ++i) {
    high[i] = fcntl(kept[i], F_DUPFD, 64);
    if (high[i] < 0) fail("descriptors");
  }
  for (int i = 0; i < 3; ++i) dup2(high[i], wanted[i]);
  long const most = sysconf(_SC_OPEN_MAX) < 4096 ? sysconf(_SC_OPEN_MAX) : 4096;
  for (int i = memory_descriptor + 1; i < most; ++i) close(i);
  int const nothing = open("/dev/null", O_RDWR);
  for (int i = 0; i < 3; ++i) dup2(nothing, i);
  close(nothing);
}

void limit(int resource, uint64_t most) {
  struct rlimit limits;
  if (getrlimit(resource, &limits)) return;
  if (limits.rlim_max == RLIM_INFINITY || limits.rlim_max > most) limits.rlim_max = rlim_t(most);
  limits.rlim_cur = limits.rlim_max;
  setrlimit(resource, &limits);
}

void lower_limits(uint64_t shared_bytes) {
  limit(RLIMIT_CORE, 0);
  limit(RLIMIT_FSIZE, 0);
  limit(RLIMIT_NOFILE, 32);
  limit(RLIMIT_CPU, cpu_seconds);
  limit(RLIMIT_AS, shared_bytes + private_bytes);
#ifdef RLIMIT_NPROC
  limit(RLIMIT_NPROC, 0);
#endif
}

#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__))
#if defined(__x86_64__)
constexpr uint32_t architecture = AUDIT_ARCH_X86_64;
#else
constexpr uint32_t architecture = AUDIT_ARCH_AARCH64;
#endif

// System calls that a computation needs: memory, the pipes, reading shared objects, its own end.
constexpr uint32_t allowed_calls[] = {
    __NR_read,    __NR_write,        __NR_close,          __NR_lseek,        __NR_pread64,    __NR_fstat,
    __NR_mmap,    __NR_munmap,       __NR_mprotect,       __NR_madvise,      __NR_mremap,     __NR_brk,
    __NR_futex,   __NR_rt_sigreturn, __NR_rt_sigprocmask, __NR_rt_sigaction, __NR_sigaltstack, __NR_getpid,
    __NR_gettid,  __NR_exit,         __NR_exit_group,     __NR_getrandom,    __NR_clock_gettime, __NR_newfstatat,
};

// Other system calls fail with EPERM. Files may be opened for reading only, and signals sent only to this process (abort). A
// Linux without such filters runs the kernel without one.
void give_up_system_calls() {
  constexpr uint32_t number = offsetof(seccomp_data, nr), first = offsetof(seccomp_data, args);
  constexpr uint32_t third = first + 2 * sizeof(uint64_t);
  std::vector<sock_filter> filter = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, architecture, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, number),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_openat, 0, 4),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, third),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, O_WRONLY | O_RDWR | O_CREAT | O_TRUNC, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_tgkill, 0, 4),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, first),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, uint32_t(getpid()), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
  };
  for (uint32_t const call : allowed_calls) {
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1));
    filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  }
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM));
  sock_fprog const program = {static_cast<unsigned short>(filter.size()), filter.data()};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0);
}
#else
void give_up_system_calls() {}
#endif

// ---- Requests ------------------------------------------------------------------------------------------------------

using Emulate = int (*)(hgemm_emulation const*, char*, size_t);

// Takes `bytes` of a request's body, which are left out if the body is too short.
class Body {
 public:
  explicit Body(std::vector<char> const& text) : at_(text.data()), left_(text.size()) {}
  void const* take(size_t bytes) {
    if (bytes > left_) _exit(1);
    void const* const found = at_;
    at_ += bytes;
    left_ -= bytes;
    return found;
  }

 private:
  char const* at_;
  size_t left_;
};

int32_t run(Emulate emulate, std::vector<char> const& text, char* report) {
  Body body(text);
  hgemm_emulation request;
  memcpy(&request, body.take(sizeof request), sizeof request);
  if (request.parameter_count > 4096 || request.region_count > 4096) _exit(1);
  std::vector<uint64_t> sizes(request.parameter_count);
  std::vector<uint64_t> name_bytes(request.region_count);
  std::vector<hgemm_region> regions(request.region_count);
  memcpy(sizes.data(), body.take(sizes.size() * sizeof(uint64_t)), sizes.size() * sizeof(uint64_t));
  memcpy(name_bytes.data(), body.take(name_bytes.size() * sizeof(uint64_t)), name_bytes.size() * sizeof(uint64_t));
  memcpy(regions.data(), body.take(regions.size() * sizeof(hgemm_region)), regions.size() * sizeof(hgemm_region));
  std::vector<void*> parameters;
  for (uint64_t const size : sizes) {
    void* const place = aligned_alloc(128, (size + 127) / 128 * 128 + 128);
    memcpy(place, body.take(size), size);
    parameters.push_back(place);
  }
  std::vector<std::string> names;
  for (uint64_t const size : name_bytes) names.emplace_back(static_cast<char const*>(body.take(size)), size);
  for (size_t i = 0; i < regions.size(); ++i) regions[i].name = names[i].c_str();
  request.parameters = parameters.data();
  request.parameter_bytes = sizes.data();
  request.regions = regions.data();
  report[0] = 0;
  int32_t const status = emulate(&request, report, largest_report);
  for (void* const parameter : parameters) free(parameter);
  return status;
}

}  // namespace

int main(int count, char** words) {
  if (count != 6) return 2;
  uint64_t const address = strtoull(words[4], nullptr, 10), bytes = strtoull(words[5], nullptr, 10);
  keep_descriptors(atoi(words[3]));
  void* const wanted = reinterpret_cast<void*>(uintptr_t(address));
  if (mmap(wanted, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, memory_descriptor, 0) != wanted) {
    return 3;
  }
  close(memory_descriptor);
  keep_freed_memory();
  std::vector<char> text;
  std::vector<char> report(largest_report);
  lower_limits(bytes);
  give_up_system_calls();
  void* const loaded = dlopen(words[1], RTLD_NOW | RTLD_LOCAL);
  char const* const why = loaded ? "" : dlerror();
  auto const emulate = loaded ? reinterpret_cast<Emulate>(dlsym(loaded, words[2])) : nullptr;
  for (Head head; read_all(&head, sizeof head);) {
    if (head.bytes > largest_request) return 1;
    text.resize(head.bytes);
    if (!read_all(text.data(), text.size())) return 1;
    if (!emulate) {
      answer(head.nonce, 1, loaded ? "it lacks the function of the kernel" : why);
    } else if (!head.bytes) {
      answer(head.nonce, 0, "");
    } else {
      int32_t const status = run(emulate, text, report.data());
      report.back() = 0;
      answer(head.nonce, status, report.data());
    }
  }
  return 0;
}
