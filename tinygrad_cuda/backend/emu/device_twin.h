// What CUDA has built in, in plain C++: the emulator compiles this before the prelude and kernels.
// The threads of a block are fibers on one CPU thread: a fiber runs until a barrier or warp
// operation makes it wait. One fiber runs thread after thread for as long as none waits, so that a
// kernel without barriers is a plain loop.
//
// Memory comes from the caller (runtime.py): one machine, shared by all compiled kernels. Only C
// headers are used, since C++ headers would treble the compile time of every kernel.

#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)
#define __constant__ static const
#define TGC_COLD static __attribute__((noinline, cold))
// Kernels are compiled without optimization by default; loops of the twins themselves are not.
#ifdef __clang__
#define TGC_HOT static __attribute__((noinline))
#else
#define TGC_HOT static __attribute__((noinline, optimize("O2")))
#endif

// --------------------------------------------------------------------------------- the launch
// runtime.py declares the same structures with ctypes.

struct tgc_emu_range { unsigned long long base, bytes; };

enum { TGC_EMU_FINE, TGC_EMU_BOUNDS, TGC_EMU_MISALIGNED, TGC_EMU_DEADLOCK, TGC_EMU_BARRIERS,
       TGC_EMU_MASK, TGC_EMU_CANARY, TGC_EMU_BLOCK_SIZE, TGC_EMU_PARAMETERS, TGC_EMU_SHARED_ACCESS,
       TGC_EMU_ASYNC };

struct tgc_emu_error {
  long long kind, block, thread;
  unsigned long long base;             // bounds, misaligned: the pointer that was indexed
  long long index, count, size;        // elements, elements, bytes of an element
  long long below, above;              // bytes of the buffer before and after that pointer
  long long write;
  long long first, second, third;      // see tgc_emu_fail's callers
};

struct tgc_emu_launch {
  char* machine;                       // TGC_EMU_MACHINE_BYTES of zeroed memory, kept for reuse
  const unsigned long long* words;
  long long word_count;
  const tgc_emu_range* ranges;
  long long range_count, grid, block, shared, order, cluster;
  tgc_emu_error error;
};

// -------------------------------------------------------------------------------- the machine

constexpr int TGC_EMU_THREADS = 2048;            // of blocks that run together
constexpr long long TGC_EMU_STACK = 65 * 4096;    // no power of two: see tgc_emu_prime
constexpr long long TGC_EMU_STATE = 256 << 10;   // the structure below and the warps
constexpr long long TGC_EMU_SHARED = 2 << 20;    // of the blocks of a cluster, between canaries
constexpr int TGC_EMU_CANARY_BYTES = 256;
constexpr int TGC_EMU_CLUSTER = 8;               // blocks of a cluster at most
constexpr int TGC_EMU_ALIGNED = 1024;            // shared memory begins at a multiple of it
constexpr int TGC_EMU_COPIES = 1 << 17;          // in flight at one time
struct tgc_emu_copy { char* to; const char* from; int bytes, next; unsigned group; };
constexpr long long TGC_EMU_MACHINE_BYTES =
    TGC_EMU_STATE + TGC_EMU_SHARED + TGC_EMU_THREADS * TGC_EMU_STACK +
    TGC_EMU_COPIES * (long long)sizeof(tgc_emu_copy);

struct tgc_emu_warp {
  unsigned arrived;
  unsigned mask[32];
  int operation[32], source[32];
  void (*work[32])(void* const* lanes);
  unsigned long long value[32], result[32];
};

struct tgc_emu_known { const char* base; long long below, above; };

struct tgc_emu_block { int live, barrier_count, barrier_line, barrier_true, barrier_result; };

struct tgc_emu_state {
  int guarded;                          // stacks that have their guard page; outlives launches
  void* contexts[TGC_EMU_THREADS + 1];  // where a thread sleeps, null before it begins; the last
                                        // is the caller's
  int free_fibers[TGC_EMU_THREADS], free_count, fresh;
  unsigned ready[TGC_EMU_THREADS], head, ready_count;  // threads that can run: a ring, in order 0
  unsigned ready_lanes[TGC_EMU_THREADS / 32];          // and in other orders a set
  unsigned warp;                                       // the warp that ran last
  bool sticky;                                         // it goes on for as long as it can
  bool spins;                                          // some thread has looked again and again
  unsigned slow_first, slow_count, slow_picks;         // warps that are seldom picked, how long
  unsigned char at_barrier[TGC_EMU_THREADS];
  int starting, starting_fiber, cursor;
  int cluster, threads, live;            // blocks and threads that run together; live: not ended
  long long first_block, shared_stride;  // of a cluster; bytes from one block's memory to the next
  char* shared_base;
  unsigned long long serial;             // of the cluster that runs, over all launches
  void (*moment)();                      // of what is asynchronous: some of it may take effect
  void (*ended)();                       // the running thread ends
  tgc_emu_block blocks[TGC_EMU_CLUSTER];
  int warp_count;                       // threads that wait at a warp operation
  int idle;                             // looks in vain since something was last told
  unsigned long long random;
  void (*worker)();
  tgc_emu_launch* launch;
  tgc_emu_known known[16];              // pointers seen lately, by a few of their bits
  tgc_emu_warp warps[TGC_EMU_THREADS / 32];
  tgc_emu_copy* copies;                 // in flight, a list for each thread: see tgc_emu_copy_async
  int copy_first[TGC_EMU_THREADS], copy_last[TGC_EMU_THREADS], free_copy, fresh_copy, in_flight;
  unsigned copy_groups[TGC_EMU_THREADS];  // that the thread has committed
  int copy_moment;
};
static_assert(sizeof(tgc_emu_state) <= TGC_EMU_STATE);

struct tgc_emu_dim { unsigned x, y, z; };
static tgc_emu_dim threadIdx, blockIdx, blockDim, gridDim;
constexpr int warpSize = 32;
static tgc_emu_state* tgc_emu;
static const unsigned long long* tgc_emu_words;
static char* tgc_emu_smem;
static int tgc_emu_self, tgc_emu_rank;  // the running thread and its block, counted in the cluster

static inline void tgc_emu_enter(int self) {
  tgc_emu_state* m = tgc_emu;
  tgc_emu_self = threadIdx.x = self;
  if (m->cluster == 1) return;
  tgc_emu_rank = self / int(blockDim.x);
  threadIdx.x = self - tgc_emu_rank * blockDim.x;
  blockIdx.x = unsigned(m->first_block + tgc_emu_rank);
  tgc_emu_smem = m->shared_base + tgc_emu_rank * m->shared_stride;
}

// -------------------------------------------------------------------------- switching of fibers

static void tgc_emu_begin() {
  tgc_emu->worker();
}
static char* tgc_emu_stack(int fiber) {
  return (char*)tgc_emu + TGC_EMU_STATE + TGC_EMU_SHARED + fiber * TGC_EMU_STACK;
}

#if defined(__x86_64__) && !defined(TGC_EMU_UCONTEXT)
extern "C" void tgc_emu_swap(void** save, void* load) __asm__("tgc_emu_swap");
__asm__(R"(
.text
.p2align 4
tgc_emu_swap:
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
  ret
)");
static inline void tgc_emu_jump(int from, int to) {
  tgc_emu_swap(&tgc_emu->contexts[from], tgc_emu->contexts[to]);
}
static inline void* tgc_emu_context(int fiber) {
  // Stack tops differ in their low bits, else all fibers would meet in the same cache sets.
  return tgc_emu_stack(fiber + 1) - (fiber % 16) * 256;
}
static inline void tgc_emu_prime(int thread, int fiber) {
  void** top = (void**)tgc_emu_context(fiber);
  top[-2] = (void*)tgc_emu_begin;  // ret leaves the stack pointer as a call would: 8 modulo 16
  tgc_emu->contexts[thread] = top - 8;
}
#else
#include <ucontext.h>
static ucontext_t tgc_emu_contexts[TGC_EMU_THREADS + 1];
static inline void tgc_emu_jump(int from, int to) {
  if (from == TGC_EMU_THREADS) tgc_emu->contexts[from] = &tgc_emu_contexts[from];
  swapcontext((ucontext_t*)tgc_emu->contexts[from], (ucontext_t*)tgc_emu->contexts[to]);
}
static inline void* tgc_emu_context(int fiber) { return &tgc_emu_contexts[fiber]; }
static void tgc_emu_prime(int thread, int fiber) {
  ucontext_t* context = (ucontext_t*)(tgc_emu->contexts[thread] = tgc_emu_context(fiber));
  getcontext(context);
  context->uc_stack.ss_sp = tgc_emu_stack(fiber);
  context->uc_stack.ss_size = TGC_EMU_STACK;
  context->uc_link = nullptr;
  makecontext(context, tgc_emu_begin, 0);
}
#endif

// Ends the launch: the caller's context goes on, all fibers are abandoned.
TGC_COLD void tgc_emu_fail(long long kind, long long first = 0, long long second = 0,
                           long long third = 0) {
  tgc_emu_error& error = tgc_emu->launch->error;
  error.kind = kind;
  error.block = blockIdx.x;
  error.thread = threadIdx.x;
  error.first = first;
  error.second = second;
  error.third = third;
  tgc_emu_jump(tgc_emu_self, TGC_EMU_THREADS);
}
TGC_COLD void tgc_emu_deadlock() {
  tgc_emu_state* m = tgc_emu;
  int waiting = 0, line = 0;
  for (int rank = m->cluster - 1; rank >= 0; rank--) {
    waiting += m->blocks[rank].barrier_count;
    if (m->blocks[rank].barrier_count) line = m->blocks[rank].barrier_line;
  }
  tgc_emu_fail(TGC_EMU_DEADLOCK, waiting, m->warp_count, line);
}

static unsigned tgc_emu_random(unsigned limit) {
  unsigned long long x = tgc_emu->random += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return unsigned(((x >> 32) * limit) >> 32);
}

static inline void tgc_emu_make_ready(int thread) {
  tgc_emu_state* m = tgc_emu;
  if (m->launch->order == 0) m->ready[(m->head + m->ready_count) % TGC_EMU_THREADS] = thread;
  else m->ready_lanes[thread / 32] |= 1u << thread % 32;
  m->ready_count++;
}

static bool tgc_emu_release_barrier(int rank) {
  tgc_emu_state* m = tgc_emu;
  tgc_emu_block& block = m->blocks[rank];
  if (block.barrier_count == 0 || block.barrier_count != block.live) return false;
  block.barrier_result = block.barrier_true;
  block.barrier_true = block.barrier_count = 0;
  if (m->ready_count == 0) m->head = 0;
  m->sticky = tgc_emu_random(2);
  int first = rank * blockDim.x;
  for (unsigned thread = first; thread < first + blockDim.x; thread++)
    if (m->at_barrier[thread]) tgc_emu_make_ready(thread);
  memset(m->at_barrier + first, 0, blockDim.x);
  return true;
}

// Where threads look again and again, none is last: so for a while one warp or one block of the
// cluster, or none, falls behind.
static void tgc_emu_slow_down(unsigned warps) {
  tgc_emu_state* m = tgc_emu;
  unsigned of_block = warps / m->cluster;
  m->slow_picks = 64u << tgc_emu_random(8);
  m->slow_count = tgc_emu_random(3) == 0 ? 0 : tgc_emu_random(2) ? of_block : 1;
  m->slow_first = m->slow_count == 1 ? tgc_emu_random(warps)
                                     : tgc_emu_random(m->cluster) * of_block;
}

// A random thread. From one barrier to the next either all warps go on evenly, or one at a time
// runs as far as it can: a missing barrier shows only if some warp is far ahead of another.
static int tgc_emu_pick_random() {
  tgc_emu_state* m = tgc_emu;
  unsigned warps = (m->threads + 31) / 32;
  if (!m->sticky || m->ready_lanes[m->warp] == 0) {
    if (m->spins && m->slow_picks-- == 0) tgc_emu_slow_down(warps);
    bool slow = m->spins && m->slow_count && tgc_emu_random(32) != 0;
    m->warp = tgc_emu_random(warps);
    for (unsigned tries = 0; m->ready_lanes[m->warp] == 0 ||
                             (slow && m->warp - m->slow_first < m->slow_count); tries++) {
      m->warp = (m->warp + 1) % warps;
      if (tries == warps) slow = false;  // no other is ready
    }
  }
  unsigned lanes = m->ready_lanes[m->warp];
  for (unsigned skip = tgc_emu_random(__builtin_popcount(lanes)); skip > 0; skip--)
    lanes &= lanes - 1;
  int lane = __builtin_ctz(lanes);
  m->ready_lanes[m->warp] &= ~(1u << lane);
  m->ready_count--;
  return m->warp * 32 + lane;
}

static void tgc_emu_copies_arrive();

// The thread to run next; -1 when all have ended.
static int tgc_emu_pick() {
  tgc_emu_state* m = tgc_emu;
  if (m->ready_count == 0) {
    if (m->cursor < m->threads) return m->cursor++;
    if (m->live == 0) return -1;
    if (m->cluster > 1 || !tgc_emu_release_barrier(0)) tgc_emu_deadlock();
  }
  if (m->launch->order != 0) {
    if (m->in_flight) tgc_emu_copies_arrive();
    if (m->moment) m->moment();
    return tgc_emu_pick_random();
  }
  unsigned at = m->head;
  m->head = (at + 1) % TGC_EMU_THREADS;
  m->ready_count--;
  return m->ready[at];
}

static void tgc_emu_start(int thread) {
  tgc_emu_state* m = tgc_emu;
  int fiber = m->free_count > 0 ? m->free_fibers[--m->free_count] : m->fresh++;
  if (fiber >= m->guarded) {
    mprotect(tgc_emu_stack(fiber), sysconf(_SC_PAGESIZE), PROT_NONE);
    m->guarded = fiber + 1;
  }
  tgc_emu_prime(thread, fiber);
  m->starting = thread;
  m->starting_fiber = fiber;
}

// The running thread waits: another runs until somebody has made this one ready.
static inline void tgc_emu_wait() {
  int self = tgc_emu_self, next = tgc_emu_pick();
  if (next == self) return;
  if (tgc_emu->contexts[next] == nullptr) tgc_emu_start(next);
  tgc_emu_jump(self, next);
  tgc_emu_enter(self);
}

// The running thread looks again later for what others tell it. If all do so, none ever will.
constexpr int TGC_EMU_PATIENCE = 1 << 20;
static inline void tgc_emu_yield() {
  tgc_emu_state* m = tgc_emu;
  int self = tgc_emu_self;
  if (m->idle++ > TGC_EMU_PATIENCE) tgc_emu_deadlock();
  m->sticky = false;
  m->spins = true;
  tgc_emu_make_ready(self);
  int next = m->cursor < m->threads ? m->cursor++ : tgc_emu_pick();
  if (next == self) return;
  if (m->contexts[next] == nullptr) tgc_emu_start(next);
  tgc_emu_jump(self, next);
  tgc_emu_enter(self);
}
static inline void tgc_emu_moved() { tgc_emu->idle = 0; }

// The running thread has ended: the next one to begin on its fiber.
static inline int tgc_emu_end(int fiber) {
  tgc_emu_state* m = tgc_emu;
  if (m->ended) m->ended();
  m->live--;
  m->blocks[tgc_emu_rank].live--;
  if (m->cluster > 1) tgc_emu_release_barrier(tgc_emu_rank);
  int next = tgc_emu_pick();
  if (next >= 0 && m->contexts[next] == nullptr) {
    m->contexts[next] = tgc_emu_context(fiber);
    return next;
  }
  m->free_fibers[m->free_count++] = fiber;
  tgc_emu_jump(tgc_emu_self, next < 0 ? TGC_EMU_THREADS : next);
  __builtin_unreachable();
}

template <class Stage> static __forceinline__ void tgc_emu_work(Stage stage) {
  int thread = tgc_emu->starting, fiber = tgc_emu->starting_fiber;
  for (;;) {
    tgc_emu_enter(thread);
    stage();
    thread = tgc_emu_end(fiber);
  }
}

// ------------------------------------------------------------------------------- global memory

TGC_COLD void tgc_emu_learn(const char* base, tgc_emu_known* known) {
  const tgc_emu_launch* launch = tgc_emu->launch;
  *known = {base, 0, 0};
  for (long long i = 0; i < launch->range_count; i++) {
    const tgc_emu_range& range = launch->ranges[i];
    unsigned long long before = (unsigned long long)base - range.base;
    if (before >= range.bytes) continue;
    *known = {base, (long long)before, (long long)(range.bytes - before)};
    return;
  }
}

TGC_COLD void tgc_emu_bad_access(long long kind, const tgc_emu_known* known, long long index,
                                 long long count, long long size, bool write) {
  tgc_emu_error& error = tgc_emu->launch->error;
  error.base = (unsigned long long)known->base;
  error.index = index;
  error.count = count;
  error.size = size;
  error.below = known->below;
  error.above = known->above;
  error.write = write;
  tgc_emu_fail(kind);
}

// `count` elements of `size` bytes at base[index] lie inside the buffer that holds `base`.
static __forceinline__ void tgc_emu_check(const void* pointer, long long index, long long count,
                                          long long size, bool write) {
  const char* base = (const char*)pointer;
  unsigned long long hash = (unsigned long long)base >> 4;
  tgc_emu_known* known = &tgc_emu->known[(hash ^ (hash >> 8)) % 16];
  if (known->base != base) tgc_emu_learn(base, known);
  if (index < -(known->below / size) || index > known->above / size - count)
    tgc_emu_bad_access(TGC_EMU_BOUNDS, known, index, count, size, write);
  long long unit = (count * size) & -(count * size);  // of a structure: what its fields need
  if (unit > 16) unit = 16;
  if (((unsigned long long)base + index * size) % unit != 0)
    tgc_emu_bad_access(TGC_EMU_MISALIGNED, known, index, count, size, write);
}

template <class T> static inline T* tgc_emu_atomic(T* pointer) {
  long long offset = (char*)pointer - tgc_emu_smem;
  if (offset < 0 || offset + (long long)sizeof(T) > tgc_emu->launch->shared)
    tgc_emu_check(pointer, 0, 1, sizeof(T), true);
  return pointer;
}

// `bytes` at an address that an instruction takes only in shared memory and divisible by `unit`.
static inline void tgc_emu_check_shared(const void* pointer, long long bytes, long long unit,
                                        bool write) {
  long long offset = (const char*)pointer - tgc_emu_smem;
  if (offset >= 0 && offset + bytes <= tgc_emu->launch->shared && offset % unit == 0) return;
  tgc_emu->launch->error.write = write;
  tgc_emu_fail(TGC_EMU_SHARED_ACCESS, offset, bytes, unit);
}

// ------------------------------------------------------------------------- asynchronous copies
// A copy to shared memory takes effect at a moment between its issue and the wait for its group: at
// its issue, at that wait, or at either or between by chance. Blocks and orders take these in turn,
// so that orders 1 to 4 of one block show all of them; order 0 shows the second. Until a copy has
// taken effect its target holds what it held, or all ones, so that a read too soon shows.

enum { TGC_EMU_AT_ISSUE, TGC_EMU_AT_WAIT, TGC_EMU_AT_WAIT_OLD_BYTES, TGC_EMU_BY_CHANCE };

static void tgc_emu_copies_reset(long long block) {
  tgc_emu_state* m = tgc_emu;
  m->copies = (tgc_emu_copy*)tgc_emu_stack(TGC_EMU_THREADS);
  memset(m->copy_first, 0xff, sizeof(int) * m->threads);
  memset(m->copy_groups, 0, sizeof(unsigned) * m->threads);
  m->free_copy = -1;
  m->fresh_copy = m->in_flight = 0;
  long long order = m->launch->order;
  m->copy_moment = order == 0 ? TGC_EMU_AT_WAIT : int((order + block) % 4);
}

static inline void tgc_emu_copy_now(char* to, const char* from, int bytes) {
  if (from) memcpy(to, from, bytes);
  else memset(to, 0, bytes);
}

// The thread's oldest copy takes effect.
static void tgc_emu_copy_arrive(int thread) {
  tgc_emu_state* m = tgc_emu;
  int number = m->copy_first[thread];
  tgc_emu_copy& copy = m->copies[number];
  tgc_emu_copy_now(copy.to, copy.from, copy.bytes);
  m->copy_first[thread] = copy.next;
  copy.next = m->free_copy;
  m->free_copy = number;
  m->in_flight--;
}

static void tgc_emu_copies_arrive() {
  if (tgc_emu->copy_moment != TGC_EMU_BY_CHANCE || tgc_emu_random(4)) return;
  int thread = tgc_emu_random(tgc_emu->threads);
  if (tgc_emu->copy_first[thread] >= 0) tgc_emu_copy_arrive(thread);
}

// `bytes` to shared memory, zeros where `from` is null.
static void tgc_emu_copy_async(void* shared, const void* from, int bytes) {
  tgc_emu_state* m = tgc_emu;
  int self = tgc_emu_self, moment = m->copy_moment;
  tgc_emu_check_shared(shared, bytes, bytes, true);
  bool full = m->free_copy < 0 && m->fresh_copy == TGC_EMU_COPIES;
  if (moment == TGC_EMU_AT_ISSUE || full || (moment == TGC_EMU_BY_CHANCE && tgc_emu_random(2))) {
    tgc_emu_copy_now((char*)shared, (const char*)from, bytes);
    return;
  }
  if (moment == TGC_EMU_AT_WAIT) memset(shared, 0xff, bytes);
  int number = m->free_copy >= 0 ? m->free_copy : m->fresh_copy++;
  if (number == m->free_copy) m->free_copy = m->copies[number].next;
  m->copies[number] = {(char*)shared, (const char*)from, bytes, -1, m->copy_groups[self]};
  if (m->copy_first[self] < 0) m->copy_first[self] = number;
  else m->copies[m->copy_last[self]].next = number;
  m->copy_last[self] = number;
  m->in_flight++;
}
static inline void tgc_emu_copy_commit() { tgc_emu->copy_groups[tgc_emu_self]++; }
// All groups of the thread but the `newer` newest arrive; what it has not committed does not.
static void tgc_emu_copy_wait(int newer) {
  tgc_emu_state* m = tgc_emu;
  int self = tgc_emu_self, last = int(m->copy_groups[self]) - newer;
  while (m->copy_first[self] >= 0 && int(m->copies[m->copy_first[self]].group) < last)
    tgc_emu_copy_arrive(self);
}

// One CPU thread runs all fibers, so plain reads and writes are atomic. Only the types that CUDA
// has, and no floating sums: their order would be the hardware's.
#define TGC_EMU_ATOMIC(NAME, T, NEW) \
  static inline T NAME(T* pointer, T value) { \
    T old = *tgc_emu_atomic(pointer); \
    *pointer = NEW; \
    return old; \
  }
#define TGC_EMU_ATOMICS(T) \
  TGC_EMU_ATOMIC(atomicAdd, T, old + value) \
  TGC_EMU_ATOMIC(atomicExch, T, value) \
  TGC_EMU_ATOMIC(atomicAnd, T, old & value) \
  TGC_EMU_ATOMIC(atomicOr, T, old | value) \
  TGC_EMU_ATOMIC(atomicXor, T, old ^ value) \
  TGC_EMU_ATOMIC(atomicMin, T, value < old ? value : old) \
  TGC_EMU_ATOMIC(atomicMax, T, value > old ? value : old) \
  static inline T atomicCAS(T* pointer, T compare, T value) { \
    T old = *tgc_emu_atomic(pointer); \
    if (old == compare) *pointer = value; \
    return old; \
  }
TGC_EMU_ATOMICS(int)
TGC_EMU_ATOMICS(unsigned)
TGC_EMU_ATOMICS(unsigned long long)
TGC_EMU_ATOMIC(atomicMin, long long, value < old ? value : old)
TGC_EMU_ATOMIC(atomicMax, long long, value > old ? value : old)
TGC_EMU_ATOMIC(atomicExch, float, value)

template <class T> static inline T __ldg(const T* pointer) {
  tgc_emu_check(pointer, 0, 1, sizeof(T), false);
  return *pointer;
}

// -------------------------------------------------------------------- barriers, warp operations

static int tgc_emu_barrier(bool predicate, int line) {
  tgc_emu_state* m = tgc_emu;
  tgc_emu_block& block = m->blocks[tgc_emu_rank];
  if (block.barrier_count++ == 0) block.barrier_line = line;
  else if (block.barrier_line != line) tgc_emu_fail(TGC_EMU_BARRIERS, block.barrier_line, line);
  block.barrier_true += predicate;
  m->at_barrier[tgc_emu_self] = 1;
  // Threads of other blocks may look in vain for ever, so a barrier cannot wait until none is ready.
  if (m->cluster > 1) tgc_emu_release_barrier(tgc_emu_rank);
  tgc_emu_wait();
  return block.barrier_result;
}
static inline void __syncthreads(int line = __builtin_LINE()) { tgc_emu_barrier(false, line); }
static inline int __syncthreads_count(int predicate, int line = __builtin_LINE()) {
  return tgc_emu_barrier(predicate != 0, line);
}
static inline int __syncthreads_or(int predicate, int line = __builtin_LINE()) {
  return tgc_emu_barrier(predicate != 0, line) != 0;
}
static inline int __syncthreads_and(int predicate, int line = __builtin_LINE()) {
  return tgc_emu_barrier(predicate == 0, line) == 0;
}
static inline void __threadfence() {}
static inline void __threadfence_block() {}

enum { TGC_EMU_SHUFFLE, TGC_EMU_VOTE, TGC_EMU_COLLECTIVE };

// What all 32 lanes do together, each with what it brings: the last lane to come does it for all.
typedef void (*tgc_emu_collective)(void* const* lanes);

// All lanes of the mask have come: each gets its source's value, or the vote.
static void tgc_emu_warp_complete(tgc_emu_warp& warp, unsigned mask, int operation,
                                  tgc_emu_collective work) {
  tgc_emu_state* m = tgc_emu;
  int self = tgc_emu_self % 32, first = tgc_emu_self - self;
  unsigned long long vote = 0;
  for (int lane = 0; lane < 32; lane++) {
    if (!(mask >> lane & 1)) continue;
    if (warp.mask[lane] != mask || warp.operation[lane] != operation || warp.work[lane] != work)
      tgc_emu_fail(TGC_EMU_MASK, mask, warp.mask[lane], lane);
    if (warp.value[lane]) vote |= 1ull << lane;
  }
  warp.arrived &= ~mask;
  if (operation == TGC_EMU_COLLECTIVE) {
    void* lanes[32];
    for (int lane = 0; lane < 32; lane++) lanes[lane] = (void*)warp.value[lane];
    work(lanes);
    tgc_emu_moved();
  }
  for (int lane = 0; lane < 32; lane++) {
    if (!(mask >> lane & 1)) continue;
    int source = warp.source[lane];
    // A lane that takes no part has no defined value: all ones show (a NaN, or -1).
    warp.result[lane] = operation == TGC_EMU_VOTE ? vote
                        : mask >> source & 1      ? warp.value[source] : ~0ull;
    if (lane == self && m->launch->order == 0) continue;
    tgc_emu_make_ready(first + lane);
  }
}

static unsigned long long tgc_emu_warp_meet(unsigned mask, int operation, unsigned long long value,
                                            int source, tgc_emu_collective work = nullptr) {
  tgc_emu_state* m = tgc_emu;
  int lane = tgc_emu_self % 32;
  tgc_emu_warp& warp = m->warps[tgc_emu_self / 32];
  if (!(mask >> lane & 1)) tgc_emu_fail(TGC_EMU_MASK, mask, mask, lane);
  warp.mask[lane] = mask;
  warp.operation[lane] = operation;
  warp.work[lane] = work;
  warp.value[lane] = value;
  warp.source[lane] = source;
  warp.arrived |= 1u << lane;
  m->warp_count++;
  if ((warp.arrived & mask) == mask) {
    m->warp_count -= __builtin_popcount(mask);
    tgc_emu_warp_complete(warp, mask, operation, work);
    if (m->launch->order != 0) tgc_emu_wait();
  } else {
    tgc_emu_wait();
  }
  return warp.result[lane];
}

static inline void tgc_emu_warp_collective(tgc_emu_collective work, void* own) {
  tgc_emu_warp_meet(0xffffffffu, TGC_EMU_COLLECTIVE, (unsigned long long)own, 0, work);
}

// sums (16 rows of 8 columns) = a b, over k in its order, each product and each sum rounded.
typedef float tgc_emu_columns __attribute__((vector_size(32), aligned(4)));
template <int DEPTH>
TGC_HOT void tgc_emu_tile_product(const float (&a)[16][16], const float* b, int b_stride,
                                 tgc_emu_columns (&sums)[16]) {
  for (int row = 0; row < 16; row++) sums[row] = tgc_emu_columns{};
  for (int k = 0; k < DEPTH; k++) {
    tgc_emu_columns line;
    memcpy(&line, b + k * b_stride, sizeof line);
    for (int row = 0; row < 16; row++) {
      tgc_emu_columns product = a[row][k] * line;
      sums[row] += product;
    }
  }
}

template <class T> static inline T tgc_emu_shuffle(unsigned mask, T value, int source) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
  unsigned long long word = 0;
  memcpy(&word, &value, sizeof(T));
  word = tgc_emu_warp_meet(mask, TGC_EMU_SHUFFLE, word, source);
  memcpy(&value, &word, sizeof(T));
  return value;
}
// `width` splits the warp into sections; a source outside the own section is the lane itself.
template <class T> static inline T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
  int lane = threadIdx.x % 32, start = lane & ~(width - 1);
  return tgc_emu_shuffle(mask, value, start | (from & (width - 1)));
}
template <class T>
static inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  int lane = threadIdx.x % 32, from = lane ^ bits;
  return tgc_emu_shuffle(mask, value, from < (lane & ~(width - 1)) + width ? from : lane);
}
template <class T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  int lane = threadIdx.x % 32, from = lane - (int)delta;
  return tgc_emu_shuffle(mask, value, from >= (lane & ~(width - 1)) ? from : lane);
}
template <class T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  int lane = threadIdx.x % 32, from = lane + (int)delta;
  return tgc_emu_shuffle(mask, value, from < (lane & ~(width - 1)) + width ? from : lane);
}
static inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return (unsigned)tgc_emu_warp_meet(mask, TGC_EMU_VOTE, predicate != 0, 0);
}
static inline int __any_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) != 0;
}
static inline int __all_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) == mask;
}
static inline void __syncwarp(unsigned mask = 0xffffffffu) { __ballot_sync(mask, 0); }

// ------------------------------------------------------------------------------------ launching

// The bytes around the shared memory of each block of the cluster are as they were.
static bool tgc_emu_canaries_whole() {
  tgc_emu_state* m = tgc_emu;
  long long shared = m->launch->shared;
  for (int rank = 0; rank < m->cluster; rank++) {
    const unsigned char* after = (unsigned char*)m->shared_base + rank * m->shared_stride + shared;
    const unsigned char* before = after - shared - TGC_EMU_CANARY_BYTES;
    for (int i = 0; i < TGC_EMU_CANARY_BYTES; i++) {
      if (before[i] == 0xa5 && after[i] == 0xa5) continue;
      bool is_after = after[i] != 0xa5;
      m->launch->error.kind = TGC_EMU_CANARY;
      m->launch->error.block = m->first_block + rank;
      m->launch->error.first = is_after ? shared + i : i - TGC_EMU_CANARY_BYTES;
      return false;
    }
  }
  return true;
}

// A block, or the blocks of a cluster together.
static bool tgc_emu_run_cluster(long long first_block) {
  tgc_emu_state* m = tgc_emu;
  const tgc_emu_launch* launch = m->launch;
  int threads = m->threads;
  blockIdx.x = (unsigned)first_block;
  m->first_block = first_block;
  m->serial++;
  m->moment = m->ended = nullptr;
  m->free_count = m->fresh = m->head = m->ready_count = m->warp_count = m->idle = 0;
  m->live = threads;
  for (int rank = 0; rank < m->cluster; rank++) {
    m->blocks[rank] = {(int)blockDim.x, 0, 0, 0, 0};
    memset(m->shared_base + rank * m->shared_stride, 0xff, launch->shared);
  }
  tgc_emu_rank = 0;
  tgc_emu_smem = m->shared_base;
  m->cursor = launch->order == 0 ? 0 : threads;
  memset(m->contexts, 0, sizeof(void*) * threads);
  memset(m->at_barrier, 0, threads);
  for (int warp = 0; warp < (threads + 31) / 32; warp++) m->warps[warp].arrived = 0;
  memset(m->ready_lanes, 0, sizeof m->ready_lanes);
  m->warp = 0;
  m->spins = m->cluster > 1;  // its blocks need not begin together
  m->slow_count = m->slow_picks = 0;
  m->sticky = tgc_emu_random(2);
  if (launch->order != 0)
    for (int thread = 0; thread < threads; thread++) tgc_emu_make_ready(thread);
  tgc_emu_copies_reset(first_block);

  int first = tgc_emu_pick();
  tgc_emu_start(first);
  tgc_emu_jump(TGC_EMU_THREADS, first);
  return launch->error.kind == TGC_EMU_FINE && tgc_emu_canaries_whole();
}

static long long tgc_emu_run(tgc_emu_launch* launch, void (*worker)(), int parameter_bytes,
                             int most_threads) {
  tgc_emu_state* m = tgc_emu = (tgc_emu_state*)launch->machine;
  launch->error.kind = launch->word_count * 8 != parameter_bytes ? TGC_EMU_PARAMETERS
                       : launch->block < 1 || launch->block > most_threads ? TGC_EMU_BLOCK_SIZE
                                                                           : TGC_EMU_FINE;
  launch->error.first = parameter_bytes;
  launch->error.second = most_threads;
  if (launch->error.kind != TGC_EMU_FINE) return launch->error.kind;
  m->launch = launch;
  m->worker = worker;
  m->random = (unsigned long long)launch->order;
  memset(m->known, 0, sizeof m->known);
  tgc_emu_words = launch->words;
  m->cluster = (int)launch->cluster;
  m->threads = int(launch->cluster * launch->block);
  m->shared_base = (char*)m + TGC_EMU_STATE + TGC_EMU_ALIGNED;
  m->shared_stride = (launch->shared / TGC_EMU_ALIGNED + 2) * TGC_EMU_ALIGNED;
  for (int rank = 0; rank < m->cluster; rank++) {
    char* shared = m->shared_base + rank * m->shared_stride;
    memset(shared - TGC_EMU_CANARY_BYTES, 0xa5, TGC_EMU_CANARY_BYTES);
    memset(shared + launch->shared, 0xa5, TGC_EMU_CANARY_BYTES);
  }
  blockDim = {(unsigned)launch->block, 1, 1};
  gridDim = {(unsigned)launch->grid, 1, 1};
  for (long long block = 0; block < launch->grid; block += m->cluster)
    if (!tgc_emu_run_cluster(block)) break;
  return launch->error.kind;
}

// What runtime.py must agree with.
extern "C" __attribute__((visibility("default"))) const long long tgc_emu_layout[2] = {
    TGC_EMU_MACHINE_BYTES, sizeof(tgc_emu_launch)};

#define TGC_KERNEL(NAME, T) \
  static_assert(sizeof(NAME##_params) <= 4096, "kernel parameters take at most 4096 bytes"); \
  static void NAME##_worker() { \
    tgc_emu_work([] { \
      NAME##_stage(blockIdx.x, *(const NAME##_params*)tgc_emu_words, tgc_emu_smem); \
    }); \
  } \
  extern "C" __attribute__((visibility("default"))) long long NAME(tgc_emu_launch* launch) { \
    return tgc_emu_run(launch, NAME##_worker, sizeof(NAME##_params), T); \
  }

#include "device_twin_math.h"
