// Fibers: stacks that take turns on one host thread. A switch saves the callee-saved registers and loads those of another
// fiber.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
#define HGEMM_FIBER_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HGEMM_FIBER_ASAN 1
#endif
#endif
#if HGEMM_FIBER_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if defined(__ELF__) && (defined(__x86_64__) || defined(__aarch64__)) && !defined(HGEMM_FIBER_UCONTEXT)
#define HGEMM_FIBER_ASSEMBLY 1
extern "C" __attribute__((visibility("hidden"))) void hgemm_fiber_switch(void** save, void* load);
#else
#include <ucontext.h>
#endif

namespace hgemm::executor {

struct Fiber {
#if HGEMM_FIBER_ASSEMBLY
  void* registers = nullptr;  // saved on the fiber's stack
#else
  ucontext_t context;
#endif
  void const* stack = nullptr;  // lowest address
  size_t stack_bytes = 0;
  void* sanitizer_stack = nullptr;
};

#if HGEMM_FIBER_ASSEMBLY && defined(__x86_64__)
// System V ABI: rbx, rbp and r12 to r15 are callee-saved; the stack is 16-byte aligned before a call.
__asm__(R"(
  .text
  .hidden hgemm_fiber_switch
  .globl hgemm_fiber_switch
  .type hgemm_fiber_switch, @function
hgemm_fiber_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  retq
  .size hgemm_fiber_switch, .-hgemm_fiber_switch
)");
inline void prepare_registers(Fiber& fiber, uintptr_t top, void (*entry)()) {
  void** const frame = reinterpret_cast<void**>(top - 64);  // six registers, the return address, and a null caller
  memset(frame, 0, 64);
  frame[6] = reinterpret_cast<void*>(entry);
  fiber.registers = frame;
}
#elif HGEMM_FIBER_ASSEMBLY
// AAPCS64: x19 to x29 and the low halves of v8 to v15 are callee-saved; x30 is the return address.
__asm__(R"(
  .text
  .hidden hgemm_fiber_switch
  .globl hgemm_fiber_switch
  .type hgemm_fiber_switch, %function
hgemm_fiber_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
  .size hgemm_fiber_switch, .-hgemm_fiber_switch
)");
inline void prepare_registers(Fiber& fiber, uintptr_t top, void (*entry)()) {
  void** const frame = reinterpret_cast<void**>(top - 160);
  memset(frame, 0, 160);
  frame[11] = reinterpret_cast<void*>(entry);  // x30
  fiber.registers = frame;
}
#endif

// Prepares `fiber` to start in `entry`, which must never return, on the stack [stack, stack + bytes).
inline void prepare(Fiber& fiber, unsigned char* stack, size_t bytes, void (*entry)()) {
  fiber.stack = stack;
  fiber.stack_bytes = bytes;
  fiber.sanitizer_stack = nullptr;
#if HGEMM_FIBER_ASAN
  __asan_unpoison_memory_region(stack, bytes);  // left by a fiber that did not finish
#endif
#if HGEMM_FIBER_ASSEMBLY
  prepare_registers(fiber, (reinterpret_cast<uintptr_t>(stack) + bytes) & ~uintptr_t(15), entry);
#else
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = stack;
  fiber.context.uc_stack.ss_size = bytes;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, entry, 0);
#endif
}

// Suspends `from` and continues `to`. Returns when something switches back to `from`.
inline void switch_fiber(Fiber& from, Fiber& to) {
#if HGEMM_FIBER_ASAN
  __sanitizer_start_switch_fiber(&from.sanitizer_stack, to.stack, to.stack_bytes);
#endif
#if HGEMM_FIBER_ASSEMBLY
  hgemm_fiber_switch(&from.registers, to.registers);
#else
  swapcontext(&from.context, &to.context);
#endif
#if HGEMM_FIBER_ASAN
  __sanitizer_finish_switch_fiber(from.sanitizer_stack, nullptr, nullptr);
#endif
}

// Loads what a switch to the fiber reads, because its stack is seldom in a cache.
inline void prefetch([[maybe_unused]] Fiber const& fiber) {
#if HGEMM_FIBER_ASSEMBLY
  for (int i = 0; i < 4; ++i) __builtin_prefetch(static_cast<char const*>(fiber.registers) + i * 64);
#endif
}

// Must be the first call on a new fiber. Under the address sanitizer, records the stack of `host` the first time.
inline void begin_fiber([[maybe_unused]] Fiber& host) {
#if HGEMM_FIBER_ASAN
  void const* stack = nullptr;
  size_t bytes = 0;
  __sanitizer_finish_switch_fiber(nullptr, &stack, &bytes);
  if (!host.stack) {
    host.stack = stack;
    host.stack_bytes = bytes;
  }
#endif
}

}  // namespace hgemm::executor
