// What kernels of the user's have besides device_twin.h: grids and blocks of three dimensions, static
// shared memory, and a look at every access. The compiler puts a call before each load and store
// (-fsanitize=thread), and the functions that it calls are here: an access outside of the launch's
// memory ends the launch before it is made, and so does one that races with another thread's.

#include <elf.h>

#define __global__
#define __shared__ static __attribute__((section("tgc_shared")))
#define TGC_QUIET __attribute__((no_sanitize("thread"), noinline, visibility("hidden")))
#define TGC_WITHIN __attribute__((no_sanitize("thread"))) static inline

struct dim3 { unsigned x = 1, y = 1, z = 1; };
enum { TGC_EMU_RACE = 11 };
extern char tgc_raw_shared_begin[] __asm__("__start_tgc_shared") __attribute__((weak, visibility("hidden")));
extern char tgc_raw_shared_end[] __asm__("__stop_tgc_shared") __attribute__((weak, visibility("hidden")));
extern char tgc_raw_image[] __asm__("__ehdr_start") __attribute__((visibility("hidden")));

static dim3 tgc_raw_grid, tgc_raw_block;
TGC_WITHIN dim3 tgc_raw_split(unsigned at, dim3 sizes) {
  return {at % sizes.x, at / sizes.x % sizes.y, at / (sizes.x * sizes.y)};
}
TGC_WITHIN unsigned tgc_raw_self() { return threadIdx.x; }
TGC_WITHIN dim3 tgc_raw_thread_index() { return tgc_raw_split(threadIdx.x, tgc_raw_block); }
TGC_WITHIN dim3 tgc_raw_block_index() { return tgc_raw_split(blockIdx.x, tgc_raw_grid); }

// ---------------------------------------------------------------------------------------- races
// Of each four bytes: who read and wrote them last, between which barriers. Two threads of a block
// race between two barriers, unless a warp operation of both stands between; two blocks always do,
// unless the kernel has a fence, by which they may have agreed on an order.

struct tgc_raw_access { int thread; unsigned epoch, warp_epoch; unsigned char bytes, atomic; };
struct tgc_raw_entry {
  unsigned long long key;
  long long block;
  unsigned launch;
  tgc_raw_access write, read, other_read;
};
constexpr unsigned TGC_RAW_ENTRIES = 1 << 20;
static tgc_raw_entry tgc_raw_entries[TGC_RAW_ENTRIES];
static unsigned tgc_raw_launches, tgc_raw_epochs[TGC_EMU_THREADS], tgc_raw_warps[TGC_EMU_THREADS];
static bool tgc_raw_fenced, tgc_raw_runs;  // a fence was met; a kernel runs
static unsigned long long tgc_raw_serial;

TGC_QUIET tgc_raw_entry* tgc_raw_find(unsigned long long key) {
  unsigned slot = unsigned(key * 0x9e3779b97f4a7c15ull >> 44) % TGC_RAW_ENTRIES;
  for (int tries = 0; tries < 64; tries++, slot = (slot + 1) % TGC_RAW_ENTRIES) {
    tgc_raw_entry* entry = &tgc_raw_entries[slot];
    if (entry->launch == tgc_raw_launches && entry->key != key) continue;
    if (entry->launch != tgc_raw_launches) *entry = {key, -1, tgc_raw_launches, {}, {}, {}};
    return entry;
  }
  return nullptr;  // full: what comes later is not compared
}

TGC_QUIET void tgc_raw_race(const char* base, long long index, int size, bool write,
                            const tgc_raw_access* other, bool wrote, long long block) {
  tgc_emu_error& error = tgc_emu->launch->error;
  error.base = (unsigned long long)base;
  error.index = index;
  error.size = size;
  error.write = write;
  error.count = block;
  tgc_emu_fail(TGC_EMU_RACE, other->thread, wrote);
}

TGC_WITHIN bool tgc_raw_conflicts(const tgc_raw_access& old, int self, unsigned char bytes, bool atomic) {
  if (!(old.bytes & bytes) || old.thread == self || (old.atomic && atomic)) return false;
  if (old.epoch != tgc_raw_epochs[self]) return false;
  return old.thread / 32 != self / 32 || old.warp_epoch == tgc_raw_warps[self];
}

TGC_QUIET void tgc_raw_compare(const char* at, int size, bool write, bool atomic, const char* base) {
  int self = tgc_raw_self();
  long long index = (at - base) / size, block = blockIdx.x;
  for (const char* part = (const char*)((unsigned long long)at & ~3ull); part < at + size; part += 4) {
    int first = part < at ? int(at - part) : 0, last = int(at + size - part);
    unsigned char bytes = (0xf << first) & ((1 << (last < 4 ? last : 4)) - 1);
    tgc_raw_entry* entry = tgc_raw_find((unsigned long long)part);
    if (!entry) return;
    if (entry->block != block) {
      bool global = base != tgc_emu_smem && base != tgc_raw_shared_begin;
      if (global && entry->block >= 0 && !tgc_raw_fenced) {
        if ((entry->write.bytes & bytes) && !(entry->write.atomic && atomic))
          tgc_raw_race(base, index, size, write, &entry->write, true, entry->block);
        if (write && (entry->read.bytes & bytes) && !(entry->read.atomic && atomic))
          tgc_raw_race(base, index, size, write, &entry->read, false, entry->block);
      }
      *entry = {entry->key, block, tgc_raw_launches, {}, {}, {}};
    }
    if (tgc_raw_conflicts(entry->write, self, bytes, atomic))
      tgc_raw_race(base, index, size, write, &entry->write, true, -1);
    if (write && tgc_raw_conflicts(entry->read, self, bytes, atomic))
      tgc_raw_race(base, index, size, write, &entry->read, false, -1);
    if (write && tgc_raw_conflicts(entry->other_read, self, bytes, atomic))
      tgc_raw_race(base, index, size, write, &entry->other_read, false, -1);
    tgc_raw_access now = {self, tgc_raw_epochs[self], tgc_raw_warps[self], bytes, atomic};
    tgc_raw_access& own = write ? entry->write : entry->read;
    bool same = own.thread == self && own.epoch == now.epoch && own.warp_epoch == now.warp_epoch;
    if (same) now.bytes |= own.bytes;
    else if (!write && own.bytes && own.epoch == now.epoch) entry->other_read = own;
    own = now;
  }
}

// -------------------------------------------------------------------------------------- accesses

TGC_WITHIN bool tgc_raw_inside(const char* at, long long size, const void* base, long long bytes) {
  return at >= (const char*)base && at + size <= (const char*)base + bytes;
}

// The bytes of this library in memory: its constants and variables are no kernel's buffers.
TGC_QUIET long long tgc_raw_image_bytes() {
  static long long bytes = 0;
  const Elf64_Ehdr* header = (const Elf64_Ehdr*)tgc_raw_image;
  const Elf64_Phdr* part = (const Elf64_Phdr*)(tgc_raw_image + header->e_phoff);
  if (bytes) return bytes;
  for (int i = 0; i < header->e_phnum; i++) {
    long long end = part[i].p_vaddr + part[i].p_memsz;
    if (part[i].p_type == PT_LOAD && end > bytes) bytes = end;
  }
  return bytes;
}

// Not of a kernel's memory, but what the emulator itself works with.
TGC_QUIET bool tgc_raw_own(const char* at) {
  const tgc_emu_launch* launch = tgc_emu->launch;
  return tgc_raw_inside(at, 1, tgc_raw_image, tgc_raw_image_bytes()) ||
         tgc_raw_inside(at, 1, launch->machine, TGC_EMU_MACHINE_BYTES) ||
         tgc_raw_inside(at, 1, launch, sizeof *launch) ||
         tgc_raw_inside(at, 1, launch->words, launch->word_count * 8) ||
         tgc_raw_inside(at, 1, launch->ranges, launch->range_count * sizeof(tgc_emu_range));
}

TGC_QUIET void tgc_raw_touch(const void* pointer, int size, bool write, bool atomic = false) {
  if (!tgc_raw_runs) return;
  const tgc_emu_launch* launch = tgc_emu->launch;
  const char* at = (const char*)pointer;
  tgc_emu_known nearest = {nullptr, 0, 0};
  unsigned long long distance = ~0ull;
  for (long long i = 0; i < launch->range_count; i++) {
    const char* base = (const char*)launch->ranges[i].base;
    long long bytes = launch->ranges[i].bytes;
    if (tgc_raw_inside(at, size, base, bytes)) {
      if ((unsigned long long)at % size)
        tgc_emu_bad_access(TGC_EMU_MISALIGNED, &(nearest = {base, 0, bytes}), (at - base) / size, 1, size, write);
      return tgc_raw_compare(at, size, write, atomic, base);
    }
    unsigned long long away = at < base ? base - at : at - base - bytes + size;
    if (away < distance) distance = away, nearest = {base, 0, bytes};
  }
  if (tgc_raw_inside(at, size, tgc_emu_smem, launch->shared))
    return tgc_raw_compare(at, size, write, atomic, tgc_emu_smem);
  if (tgc_raw_inside(at, size, tgc_raw_shared_begin, tgc_raw_shared_end - tgc_raw_shared_begin))
    return tgc_raw_compare(at, size, write, atomic, tgc_raw_shared_begin);
  if (tgc_raw_own(at)) return;
  long long index = (at - nearest.base) / size;
  if (at < nearest.base && (at - nearest.base) % size) index--;
  tgc_emu_bad_access(TGC_EMU_BOUNDS, &nearest, index, 1, size, write);
}

extern "C" {
#define TGC_RAW_HOOKS(N) \
  TGC_QUIET void __tsan_read##N(void* p) { tgc_raw_touch(p, N, false); } \
  TGC_QUIET void __tsan_write##N(void* p) { tgc_raw_touch(p, N, true); } \
  TGC_QUIET void __tsan_unaligned_read##N(void* p) { tgc_raw_touch(p, N, false); } \
  TGC_QUIET void __tsan_unaligned_write##N(void* p) { tgc_raw_touch(p, N, true); } \
  TGC_QUIET void __tsan_volatile_read##N(void* p) { tgc_raw_touch(p, N, false); } \
  TGC_QUIET void __tsan_volatile_write##N(void* p) { tgc_raw_touch(p, N, true); }
TGC_RAW_HOOKS(1) TGC_RAW_HOOKS(2) TGC_RAW_HOOKS(4) TGC_RAW_HOOKS(8) TGC_RAW_HOOKS(16)
TGC_QUIET void __tsan_read_range(void* p, unsigned long n) {
  for (unsigned long i = 0; i < n; i++) tgc_raw_touch((char*)p + i, 1, false);
}
TGC_QUIET void __tsan_write_range(void* p, unsigned long n) {
  for (unsigned long i = 0; i < n; i++) tgc_raw_touch((char*)p + i, 1, true);
}
TGC_QUIET void __tsan_init() {}
TGC_QUIET void __tsan_func_entry(void*) {}
TGC_QUIET void __tsan_func_exit() {}
}

// Atomics in place of the twins': they are compared as such, in shared memory of either kind, too.
#define TGC_RAW_ATOMIC(NAME, NEW) \
  template <class T, class V> TGC_QUIET T tgc_raw_##NAME(T* pointer, V given) { \
    tgc_raw_touch(pointer, sizeof(T), true, true); \
    T old = *pointer, value = T(given); \
    *pointer = NEW; \
    return old; \
  }
TGC_RAW_ATOMIC(atomicAdd, T(old + value))
TGC_RAW_ATOMIC(atomicSub, T(old - value))
TGC_RAW_ATOMIC(atomicExch, value)
TGC_RAW_ATOMIC(atomicAnd, T(old & value))
TGC_RAW_ATOMIC(atomicOr, T(old | value))
TGC_RAW_ATOMIC(atomicXor, T(old ^ value))
TGC_RAW_ATOMIC(atomicMin, value < old ? value : old)
TGC_RAW_ATOMIC(atomicMax, value > old ? value : old)
TGC_RAW_ATOMIC(atomicInc, old >= value ? T(0) : T(old + 1))
template <class T, class V, class W> TGC_QUIET T tgc_raw_atomicCAS(T* pointer, V compare, W value) {
  tgc_raw_touch(pointer, sizeof(T), true, true);
  T old = *pointer;
  if (old == T(compare)) *pointer = T(value);
  return old;
}
template <class T> TGC_QUIET T tgc_raw_ldg(const T* pointer) {
  tgc_raw_touch(pointer, sizeof(T), false);
  return *pointer;
}

// ---------------------------------------------------------------------------- barriers and launch

TGC_QUIET int tgc_raw_barrier(int predicate, int line) {
  int result = tgc_emu_barrier(predicate != 0, line);
  tgc_raw_epochs[tgc_raw_self()]++;
  return result;
}
template <class T> TGC_QUIET T tgc_raw_after_warp(T value) {
  tgc_raw_warps[tgc_raw_self()]++;
  return value;
}
TGC_QUIET void tgc_raw_syncwarp(unsigned mask = 0xffffffffu) {
  __syncwarp(mask);
  tgc_raw_warps[tgc_raw_self()]++;
}
TGC_QUIET void tgc_raw_fence() { tgc_raw_fenced = true; }

// The first thread of a block finds shared memory without a value.
TGC_QUIET void tgc_raw_begin() {
  tgc_raw_runs = true;
  tgc_raw_epochs[tgc_raw_self()] = tgc_raw_warps[tgc_raw_self()] = 0;
  if (tgc_raw_serial == tgc_emu->serial) return;
  tgc_raw_serial = tgc_emu->serial;
  memset(tgc_raw_shared_begin, 0xff, tgc_raw_shared_end - tgc_raw_shared_begin);
}
TGC_QUIET long long tgc_raw_run(tgc_emu_launch* launch, void (*worker)(), int arguments, int bytes) {
  const unsigned long long* sizes = launch->words + arguments;
  tgc_raw_grid = {unsigned(sizes[0]), unsigned(sizes[1]), unsigned(sizes[2])};
  tgc_raw_block = {unsigned(sizes[3]), unsigned(sizes[4]), unsigned(sizes[5])};
  tgc_raw_launches++;
  tgc_raw_fenced = tgc_raw_runs = false;
  tgc_raw_serial = ~0ull;
  long long failed = tgc_emu_run(launch, worker, bytes, 1024);
  tgc_raw_runs = false;
  return failed;
}

#define threadIdx (tgc_raw_thread_index())
#define blockIdx (tgc_raw_block_index())
#define blockDim tgc_raw_block
#define gridDim tgc_raw_grid
#define __syncthreads() ((void)tgc_raw_barrier(0, __LINE__))
#define __syncthreads_count(p) tgc_raw_barrier(p, __LINE__)
#define __syncthreads_or(p) (tgc_raw_barrier(p, __LINE__) != 0)
#define __syncthreads_and(p) (tgc_raw_barrier(!(p), __LINE__) == 0)
#define __syncwarp tgc_raw_syncwarp
#define __threadfence tgc_raw_fence
#define __shfl_sync(...) tgc_raw_after_warp(__shfl_sync(__VA_ARGS__))
#define __shfl_xor_sync(...) tgc_raw_after_warp(__shfl_xor_sync(__VA_ARGS__))
#define __shfl_up_sync(...) tgc_raw_after_warp(__shfl_up_sync(__VA_ARGS__))
#define __shfl_down_sync(...) tgc_raw_after_warp(__shfl_down_sync(__VA_ARGS__))
#define __ballot_sync(...) tgc_raw_after_warp(__ballot_sync(__VA_ARGS__))
#define __any_sync(...) tgc_raw_after_warp(__any_sync(__VA_ARGS__))
#define __all_sync(...) tgc_raw_after_warp(__all_sync(__VA_ARGS__))
#define atomicAdd tgc_raw_atomicAdd
#define atomicSub tgc_raw_atomicSub
#define atomicExch tgc_raw_atomicExch
#define atomicAnd tgc_raw_atomicAnd
#define atomicOr tgc_raw_atomicOr
#define atomicXor tgc_raw_atomicXor
#define atomicMin tgc_raw_atomicMin
#define atomicMax tgc_raw_atomicMax
#define atomicInc tgc_raw_atomicInc
#define atomicCAS tgc_raw_atomicCAS
#define __ldg tgc_raw_ldg
