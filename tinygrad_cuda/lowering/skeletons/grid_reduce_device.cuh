// What grid_reduce.cuh needs: bulk copies that a barrier counts, words by which blocks publish sums to
// each other, and waits for either. It runs from sm_90 on. The emulator runs one block.

#ifdef TGC_EMULATOR
#include "device_twin_async.h"
#endif

#define TGC_ALL_LANES 0xffffffffu

TGC_DEVICE void tgc_nap(int nanoseconds) {
#ifdef TGC_EMULATOR
  tgc_emu_yield();
#elif __CUDA_ARCH__ >= 700
  __nanosleep(nanoseconds);
#endif
}

// ------------------------------------------------------------------------- copies to shared memory

// A barrier at its beginning. It waits for copies that the thread has sent for, so those come later.
TGC_DEVICE void tgc_grid_barrier_init(unsigned long long* barrier) {
#ifdef TGC_EMULATOR
  tgc_emu_mbarrier_init(barrier, 1);
  tgc_emu_mbarrier_fence();
#elif __CUDA_ARCH__ >= 900
  unsigned address = (unsigned)__cvta_generic_to_shared(barrier);
  asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(address) : "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Announces the bytes of the copies that follow, which complete one phase of the barrier.
TGC_DEVICE void tgc_grid_barrier_expect(unsigned long long* barrier, int bytes) {
#ifdef TGC_EMULATOR
  tgc_emu_mbarrier_arrive(barrier, bytes);
#elif __CUDA_ARCH__ >= 900
  unsigned address = (unsigned)__cvta_generic_to_shared(barrier);
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;"
               :: "r"(address), "r"(bytes) : "memory");
#endif
}

// COUNT elements from base[index], a multiple of 16 bytes. What is read once is marked as the last
// to leave the cache: what the kernel stores then leaves it soon, in the order in which it came.
template <int COUNT, class T, class I>
TGC_DEVICE void tgc_grid_copy(char* target, const T* base, I index, unsigned long long* barrier) {
  constexpr int bytes = COUNT * int(sizeof(T));
  static_assert(bytes % 16 == 0, "bulk copies move 16 bytes and multiples");
#ifdef TGC_EMULATOR
  tgc_emu_bulk_load(target, tgc_address(base, index, COUNT), bytes, barrier);
#elif __CUDA_ARCH__ >= 900
  unsigned long long policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
               "[%0], [%1], %2, [%3], %4;"
               :: "r"((unsigned)__cvta_generic_to_shared(target)), "l"(base + index), "r"(bytes),
                  "r"((unsigned)__cvta_generic_to_shared(barrier)), "l"(policy) : "memory");
#endif
}

// Waits for a phase of the barrier: the first, third, ... have parity 0.
TGC_DEVICE void tgc_grid_barrier_wait(unsigned long long* barrier, unsigned parity) {
#ifdef TGC_EMULATOR
  while (!tgc_emu_mbarrier_try_wait(barrier, parity)) {}
#elif __CUDA_ARCH__ >= 900
  unsigned address = (unsigned)__cvta_generic_to_shared(barrier), done = 0;
  while (!done)
    asm volatile("{\n.reg .pred P;\n"
                 "mbarrier.try_wait.parity.shared.b64 P, [%1], %2;\nselp.b32 %0, 1, 0, P;\n}"
                 : "=r"(done) : "r"(address), "r"(parity) : "memory");
#endif
}

// Some bits of a vector, and a point that a warp passes when all its loads of such bits have
// returned: only then may a copy be sent for that overwrites them.
template <class T, int N> TGC_DEVICE unsigned tgc_grid_load_bits(const tgc_vector<T, N>& value) {
  unsigned bits = 0;
  memcpy(&bits, &value, sizeof(value) < 4 ? sizeof(value) : 4);
  return bits;
}
TGC_DEVICE void tgc_grid_loads_done(unsigned bits) {
  int any = __any_sync(TGC_ALL_LANES, bits == 0x5eadc0deu);
#ifndef TGC_EMULATOR
  asm volatile("" :: "r"(any) : "memory");
#endif
  __syncwarp();
}

// ---------------------------------------------------------------------- words from block to block
// A word holds 32 bits of a value and the number of the launch: it says itself whether it is there.

TGC_DEVICE unsigned long long tgc_grid_word(float value, unsigned launch) {
  return (unsigned long long)launch << 32 | __float_as_uint(value);
}
TGC_DEVICE void tgc_grid_publish(unsigned long long* words, int index, float a, float b,
                              unsigned launch) {
  unsigned long long* address = tgc_address_write(words, index, 2);
  unsigned long long first = tgc_grid_word(a, launch), second = tgc_grid_word(b, launch);
#if !defined(TGC_EMULATOR) && __CUDA_ARCH__ >= 700
  asm volatile("st.relaxed.gpu.global.v2.b64 [%0], {%1, %2};"
               :: "l"(address), "l"(first), "l"(second) : "memory");
#else
  address[0] = first, address[1] = second;
#ifdef TGC_EMULATOR
  tgc_emu_moved();
#endif
#endif
}
// Two words; whether both are there.
TGC_DEVICE bool tgc_grid_poll(unsigned long long* words, int index, float& a, float& b,
                              unsigned launch) {
  unsigned long long* address = tgc_address_write(words, index, 2);
  unsigned long long first, second;
#if !defined(TGC_EMULATOR) && __CUDA_ARCH__ >= 700
  asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];"
               : "=l"(first), "=l"(second) : "l"(address) : "memory");
#else
  first = address[0], second = address[1];
#endif
  a = __uint_as_float((unsigned)first), b = __uint_as_float((unsigned)second);
  return first >> 32 == launch && second >> 32 == launch;
}

// The number of this launch, from 1: each takes COUNT tickets from the first word.
template <int COUNT> TGC_DEVICE unsigned tgc_grid_launch(unsigned long long* words) {
  unsigned long long* address = tgc_address_write(words, 0);
  unsigned long long taken;
#if !defined(TGC_EMULATOR) && __CUDA_ARCH__ >= 700
  asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(taken) : "l"(address) : "memory");
#else
  taken = *address;
#endif
  return (unsigned)(taken / COUNT) + 1;
}
// The next ticket of this launch, the same for all lanes.
template <int COUNT> TGC_DEVICE int tgc_grid_ticket(unsigned long long* words) {
  int ticket = 0;
  if (tgc_lane() == 0) ticket = int(atomicAdd(tgc_address_write(words, 0), 1ull) % COUNT);
  return __shfl_sync(TGC_ALL_LANES, ticket, 0);
}

// A count of one block that others wait for: what the block has stored before is seen by them then.
TGC_DEVICE unsigned long long tgc_grid_flag(unsigned long long* flags, int index) {
  unsigned long long* address = tgc_address_write(flags, index);
  unsigned long long count;
#if !defined(TGC_EMULATOR) && __CUDA_ARCH__ >= 700
  asm volatile("ld.acquire.gpu.global.b64 %0, [%1];" : "=l"(count) : "l"(address) : "memory");
#else
  count = *address;
#endif
  return count;
}
TGC_DEVICE void tgc_grid_flag_publish(unsigned long long* flags, int index,
                                      unsigned long long count) {
  unsigned long long* address = tgc_address_write(flags, index);
#if !defined(TGC_EMULATOR) && __CUDA_ARCH__ >= 700
  asm volatile("st.release.gpu.global.b64 [%0], %1;" :: "l"(address), "l"(count) : "memory");
#else
  *address = count;
#ifdef TGC_EMULATOR
  tgc_emu_moved();
#endif
#endif
}
TGC_DEVICE void tgc_grid_flag_await(unsigned long long* flags, int index,
                                    unsigned long long count) {
  while (tgc_grid_flag(flags, index) < count) {
#ifdef TGC_EMULATOR
    tgc_emu_yield();
#endif
  }
}

// The same within a block, in shared memory: by atomic operations, since no barrier stands between.
TGC_DEVICE void tgc_block_publish(unsigned long long* word, float value, unsigned launch) {
  atomicExch(word, tgc_grid_word(value, launch));
#ifdef TGC_EMULATOR
  tgc_emu_moved();
#endif
}
// Waits for COUNT words, which a warp may have to look at many times; all lanes get the values.
template <int COUNT>
TGC_DEVICE void tgc_block_wait(unsigned long long* words, float (&values)[COUNT], unsigned launch) {
  unsigned long long word = 0;
  while (true) {
    if (tgc_lane() < COUNT) word = atomicCAS(words + tgc_lane(), 0ull, 0ull);
    if (__all_sync(TGC_ALL_LANES, tgc_lane() >= COUNT || word >> 32 == launch)) break;
    tgc_nap(40);
  }
#pragma unroll
  for (int i = 0; i < COUNT; i++)
    values[i] = __uint_as_float(__shfl_sync(TGC_ALL_LANES, (unsigned)word, i));
}
