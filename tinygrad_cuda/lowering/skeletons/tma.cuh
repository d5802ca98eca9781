// Copies of whole boxes of a tensor between global and shared memory (TMA), the mbarriers that count
// them, and barriers of some warps or of a cluster of blocks. It runs from sm_90 on.
// Kernels that name none of these functions are compiled without this text.
//
// A ring of slots: for each slot a barrier `full`, which the producer's expected bytes complete, and
// a barrier `empty`, at which consumers arrive when they have read the slot.
//   producer: tgc_barrier_wait(empty, parity ^ 1); tgc_barrier_expect(full, bytes); tgc_tma_load(...)
//   consumer: tgc_barrier_wait(full, parity); ...; tgc_barrier_arrive(empty)
// The parity of a slot is 0 in the first round and changes with each: a new barrier's phase -1 is
// complete, so the producer's first waits pass.

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#error "tma.cuh needs sm_90"
#endif
#ifdef TGC_EMULATOR
#include "device_twin_async.h"
#endif

// What describes a tensor to TMA: made by the host, a kernel's parameter or in global memory.
struct alignas(64) tgc_tensor_map { unsigned long long words[16]; };

#ifndef TGC_EMULATOR
TGC_DEVICE unsigned tgc_shared_address(const void* pointer) {
  return (unsigned)__cvta_generic_to_shared(pointer);
}
#endif

// --------------------------------------------------------------------------------------- mbarriers

// A barrier of so many arrivals a phase. After all are set, one fence by the threads that set them,
// then a barrier of the block (or cluster).
TGC_DEVICE void tgc_barrier_init(unsigned long long* barrier, int arrivals) {
#ifdef TGC_EMULATOR
  tgc_emu_mbarrier_init(barrier, arrivals);
#else
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
               :: "r"(tgc_shared_address(barrier)), "r"(arrivals) : "memory");
#endif
}
TGC_DEVICE void tgc_barrier_fence() {
#ifdef TGC_EMULATOR
  tgc_emu_mbarrier_fence();
#else
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
// Arrives, and adds the bytes of copies to what the phase waits for.
TGC_DEVICE void tgc_barrier_expect(unsigned long long* barrier, int bytes) {
#ifdef TGC_EMULATOR
  tgc_emu_check_shared(barrier, 8, 8, true);
  tgc_emu_mbarrier_arrive(barrier, bytes);
#else
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :: "r"(tgc_shared_address(barrier)), "r"(bytes) : "memory");
#endif
}
TGC_DEVICE void tgc_barrier_arrive(unsigned long long* barrier) {
#ifdef TGC_EMULATOR
  tgc_emu_check_shared(barrier, 8, 8, true);
  tgc_emu_mbarrier_arrive(barrier, 0);
#else
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];"
               :: "r"(tgc_shared_address(barrier)) : "memory");
#endif
}
// Arrives at the barrier at the same offset in another block of the cluster.
TGC_DEVICE void tgc_barrier_arrive_remote(unsigned long long* barrier, int rank) {
#ifdef TGC_EMULATOR
  tgc_emu_check_shared(barrier, 8, 8, true);
  tgc_emu_mbarrier_arrive_remote(barrier, rank);
#else
  asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
               "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there];\n}"
               :: "r"(tgc_shared_address(barrier)), "r"(rank) : "memory");
#endif
}
// Whether the phase of this parity is complete: the first, third, ... have parity 0.
TGC_DEVICE bool tgc_barrier_try_wait(unsigned long long* barrier, unsigned parity) {
#ifdef TGC_EMULATOR
  return tgc_emu_mbarrier_try_wait(barrier, parity);
#else
  unsigned done;
  asm volatile("{\n.reg .pred P;\n"
               "mbarrier.try_wait.parity.shared::cta.b64 P, [%1], %2;\nselp.b32 %0, 1, 0, P;\n}"
               : "=r"(done) : "r"(tgc_shared_address(barrier)), "r"(parity) : "memory");
  return done;
#endif
}
TGC_DEVICE void tgc_barrier_wait(unsigned long long* barrier, unsigned parity) {
  while (!tgc_barrier_try_wait(barrier, parity)) {}
}

// What this thread has stored to shared memory is seen by TMA and wgmma from here on. Other threads'
// stores need their own fence, then a barrier.
TGC_DEVICE void tgc_proxy_fence() {
#ifdef TGC_EMULATOR
  tgc_emu_proxy_fence();
#else
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// --------------------------------------------------------------------------- boxes to and from memory
// One thread issues a copy. `at` is the box's first element, innermost axis first; what lies outside
// the tensor is zero, and is not stored. `shared` is divisible by 128, with a swizzle by 1024.

TGC_DEVICE void tgc_tma_prefetch(const tgc_tensor_map* map) {
#ifndef TGC_EMULATOR
  asm volatile("prefetch.tensormap [%0];" :: "l"(map) : "memory");
#endif
}

#define TGC_TMA_LOAD(AXES, AT, BARRIER) \
  "cp.async.bulk.tensor." AXES ".shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {" \
  AT "}], [" BARRIER "];"
#define TGC_TMA_MULTICAST(AXES, AT, BARRIER, BLOCKS) \
  "cp.async.bulk.tensor." AXES ".shared::cluster.global.mbarrier::complete_tx::bytes" \
  ".multicast::cluster [%0], [%1, {" AT "}], [" BARRIER "], " BLOCKS ";"
#define TGC_TMA_STORE(AXES, AT, SHARED) \
  "cp.async.bulk.tensor." AXES ".global.shared::cta.bulk_group [%0, {" AT "}], [" SHARED "];"

template <int AXES>
TGC_DEVICE void tgc_tma_load(void* shared, const tgc_tensor_map* map, unsigned long long* barrier,
                             const int (&at)[AXES]) {
#ifdef TGC_EMULATOR
  tgc_emu_tma_load(shared, map, barrier, at, AXES, 1u << tgc_emu_rank);
#else
  unsigned to = tgc_shared_address(shared), by = tgc_shared_address(barrier);
  if constexpr (AXES == 1)
    asm volatile(TGC_TMA_LOAD("1d", "%2", "%3")
                 :: "r"(to), "l"(map), "r"(at[0]), "r"(by) : "memory");
  else if constexpr (AXES == 2)
    asm volatile(TGC_TMA_LOAD("2d", "%2, %3", "%4")
                 :: "r"(to), "l"(map), "r"(at[0]), "r"(at[1]), "r"(by) : "memory");
  else if constexpr (AXES == 3)
    asm volatile(TGC_TMA_LOAD("3d", "%2, %3, %4", "%5")
                 :: "r"(to), "l"(map), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(by) : "memory");
  else if constexpr (AXES == 4)
    asm volatile(TGC_TMA_LOAD("4d", "%2, %3, %4, %5", "%6")
                 :: "r"(to), "l"(map), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(by)
                 : "memory");
  else
    asm volatile(TGC_TMA_LOAD("5d", "%2, %3, %4, %5, %6", "%7")
                 :: "r"(to), "l"(map), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]),
                    "r"(by) : "memory");
#endif
}

// Pixels of images with the channels last, `at` {channel, column, row, image} the first one: the next
// ones along rows, columns and images as the map has them, each at the distance {columns, rows} of a
// window's tap.
TGC_DEVICE void tgc_tma_load_pixels(void* shared, const tgc_tensor_map* map,
                                    unsigned long long* barrier, const int (&at)[4],
                                    const int (&tap)[2]) {
#ifdef TGC_EMULATOR
  tgc_emu_tma_load(shared, map, barrier, at, 4, 1u << tgc_emu_rank, tap);
#else
  unsigned to = tgc_shared_address(shared), by = tgc_shared_address(barrier);
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
               "[%0], [%1, {%2, %3, %4, %5}], [%6], {%7, %8};"
               :: "r"(to), "l"(map), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(by),
                  "h"((unsigned short)tap[0]), "h"((unsigned short)tap[1]) : "memory");
#endif
}

// To the same offset of all blocks of the cluster whose bits are set; each one's own barrier at the
// same offset counts its bytes.
template <int AXES>
TGC_DEVICE void tgc_tma_load_multicast(void* shared, const tgc_tensor_map* map,
                                       unsigned long long* barrier, const int (&at)[AXES],
                                       unsigned short blocks) {
  static_assert(AXES == 2 || AXES == 3, "multicast copies have 2 or 3 axes");
#ifdef TGC_EMULATOR
  tgc_emu_tma_load(shared, map, barrier, at, AXES, blocks);
#else
  unsigned to = tgc_shared_address(shared), by = tgc_shared_address(barrier);
  if constexpr (AXES == 2)
    asm volatile(TGC_TMA_MULTICAST("2d", "%2, %3", "%4", "%5")
                 :: "r"(to), "l"(map), "r"(at[0]), "r"(at[1]), "r"(by), "h"(blocks) : "memory");
  else
    asm volatile(TGC_TMA_MULTICAST("3d", "%2, %3, %4", "%5", "%6")
                 :: "r"(to), "l"(map), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(by), "h"(blocks)
                 : "memory");
#endif
}

// A store belongs to the thread's next group. Before a group's shared memory is written again, or the
// block ends, the thread that committed it waits until no more than NEWER later groups are unread.
template <int AXES>
TGC_DEVICE void tgc_tma_store(const tgc_tensor_map* map, const void* shared,
                              const int (&at)[AXES]) {
#ifdef TGC_EMULATOR
  tgc_emu_tma_store(map, shared, at, AXES);
#else
  unsigned from = tgc_shared_address(shared);
  if constexpr (AXES == 1)
    asm volatile(TGC_TMA_STORE("1d", "%1", "%2") :: "l"(map), "r"(at[0]), "r"(from) : "memory");
  else if constexpr (AXES == 2)
    asm volatile(TGC_TMA_STORE("2d", "%1, %2", "%3")
                 :: "l"(map), "r"(at[0]), "r"(at[1]), "r"(from) : "memory");
  else if constexpr (AXES == 3)
    asm volatile(TGC_TMA_STORE("3d", "%1, %2, %3", "%4")
                 :: "l"(map), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(from) : "memory");
  else if constexpr (AXES == 4)
    asm volatile(TGC_TMA_STORE("4d", "%1, %2, %3, %4", "%5")
                 :: "l"(map), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(from) : "memory");
  else
    asm volatile(TGC_TMA_STORE("5d", "%1, %2, %3, %4, %5", "%6")
                 :: "l"(map), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]), "r"(from)
                 : "memory");
#endif
}
TGC_DEVICE void tgc_tma_store_commit() {
#ifdef TGC_EMULATOR
  tgc_emu_tma_commit();
#else
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}
template <int NEWER> TGC_DEVICE void tgc_tma_store_wait() {
#ifdef TGC_EMULATOR
  tgc_emu_tma_wait(NEWER);
#else
  asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(NEWER) : "memory");
#endif
}

// ------------------------------------------------------------------------- tiles to shared memory
// The inverse of tgc_ldmatrix_x4: the lane's parts of four matrices of 8 x 8 elements of 16 bits;
// `row` is the lane's own address, of row lane % 8 of matrix lane / 8.

#ifdef TGC_EMULATOR
struct tgc_stmatrix_lane { void* row; const unsigned* r; };
template <bool TRANSPOSED> static void tgc_stmatrix_twin(void* const* lanes) {
  for (int matrix = 0; matrix < 4; matrix++) {
    for (int lane = 0; lane < 32; lane++) {
      unsigned pair = ((tgc_stmatrix_lane*)lanes[lane])->r[matrix];
      for (int i = 0; i < 2; i++) {
        int row = TRANSPOSED ? lane % 4 * 2 + i : lane / 4;
        int column = TRANSPOSED ? lane / 4 : lane % 4 * 2 + i;
        auto* to = (unsigned short*)((tgc_stmatrix_lane*)lanes[matrix * 8 + row])->row;
        to[column] = (unsigned short)(pair >> i * 16);
      }
    }
  }
}
#define TGC_STMATRIX(NAME, TRANSPOSED, FORM) \
  TGC_DEVICE void NAME(void* row, const unsigned (&r)[4]) { \
    tgc_emu_check_shared(row, 16, 16, true); \
    tgc_stmatrix_lane own = {row, r}; \
    tgc_emu_warp_collective(tgc_stmatrix_twin<TRANSPOSED>, &own); \
  }
#else
#define TGC_STMATRIX(NAME, TRANSPOSED, FORM) \
  TGC_DEVICE void NAME(void* row, const unsigned (&r)[4]) { \
    asm volatile("stmatrix.sync.aligned.m8n8.x4" FORM ".shared.b16 [%0], {%1, %2, %3, %4};" \
                 :: "r"(tgc_shared_address(row)), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) \
                 : "memory"); \
  }
#endif
TGC_STMATRIX(tgc_stmatrix_x4, false, "")
TGC_STMATRIX(tgc_stmatrix_x4_trans, true, ".trans")

// ------------------------------------------------------------- barriers of some warps and of clusters

// Barrier 1 to 15 of `threads` threads, whole warps; __syncthreads has number 0. A warp that only
// arrives does not wait.
TGC_DEVICE void tgc_named_barrier(int number, int threads) {
#ifdef TGC_EMULATOR
  tgc_emu_named_barrier(number, threads, true);
#else
  asm volatile("bar.sync %0, %1;" :: "r"(number), "r"(threads) : "memory");
#endif
}
TGC_DEVICE void tgc_named_barrier_arrive(int number, int threads) {
#ifdef TGC_EMULATOR
  tgc_emu_named_barrier(number, threads, false);
#else
  asm volatile("bar.arrive %0, %1;" :: "r"(number), "r"(threads) : "memory");
#endif
}

// The block's number in its cluster.
TGC_DEVICE int tgc_cluster_rank() {
#ifdef TGC_EMULATOR
  return tgc_emu_rank;
#else
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
#endif
}
// Neighbouring numbers at the same offset of the shared memory of a block of the cluster.
template <int N> TGC_DEVICE tgc_vector<float, N> tgc_cluster_load(const float* shared, int rank) {
  static_assert(N == 1 || N == 2 || N == 4, "1, 2 or 4 numbers at once");
  tgc_vector<float, N> v;
#ifdef TGC_EMULATOR
  memcpy(&v, tgc_emu_remote(shared, 4 * N, rank), sizeof(v));
#else
  unsigned there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(there) : "r"(tgc_shared_address(shared)), "r"(rank));
  if constexpr (N == 4)
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.at[0]), "=f"(v.at[1]), "=f"(v.at[2]), "=f"(v.at[3])
                 : "r"(there) : "memory");
  else if constexpr (N == 2)
    asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];"
                 : "=f"(v.at[0]), "=f"(v.at[1]) : "r"(there) : "memory");
  else
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v.at[0]) : "r"(there) : "memory");
#endif
  return v;
}
// A barrier of all threads of the cluster that have not ended. One stands between the setting of mbarriers and the first
// copy or arrival from another block, and one before a block ends whose memory others still use.
TGC_DEVICE void tgc_cluster_sync() {
#ifdef TGC_EMULATOR
  tgc_emu_cluster_arrive();
  tgc_emu_cluster_wait();
#else
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;"
               ::: "memory");
#endif
}

// The kernel NAME in clusters of CLUSTER blocks, otherwise as TGC_KERNEL_MIN_BLOCKS has it.
#ifdef TGC_EMULATOR
#define TGC_KERNEL_CLUSTER(NAME, T, BLOCKS, CLUSTER) TGC_KERNEL(NAME, T)
#else
#define TGC_KERNEL_CLUSTER(NAME, T, BLOCKS, CLUSTER) \
  static_assert(sizeof(NAME##_params) <= 4096, "kernel parameters take at most 4096 bytes"); \
  extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(T, BLOCKS) \
  NAME(const __grid_constant__ NAME##_params p) { \
    extern __shared__ __align__(1024) char smem[]; \
    tgc_grid_wait(); \
    tgc_grid_signal(); \
    NAME##_stage(blockIdx.x, p, smem); \
  }
#endif
