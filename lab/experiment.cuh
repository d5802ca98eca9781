// What the experiments add to the device prelude: the two halves of a programmatic graph
// edge, streaming accesses, and block reductions whose size is known when they are compiled.

// How a kernel stands to the kernels before and after it. The host sets TGC_EDGE to one of these.
#define TGC_EDGE_PLAIN 0        // full edges: nothing in the kernel
#define TGC_EDGE_SIGNAL_WAIT 1  // dependents may start at once; no load may stand before the wait
#define TGC_EDGE_WAIT_SIGNAL \
  2  // dependents start once the wait is over; older values may be loaded early
#define TGC_EDGE_WAIT_LATE 3    // the same, but every load stands after the wait
#define TGC_EDGE_NO_SIGNAL 4    // waits, loads early, and lets its end be the signal
#define TGC_EDGE_SIGNAL_LATE 5  // as WAIT_SIGNAL, but signals only once its own loads are done
#ifndef TGC_EDGE
#define TGC_EDGE TGC_EDGE_PLAIN
#endif

#define TGC_KERNEL_MIN(NAME, THREADS, BLOCKS)                   \
  extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) \
      NAME(const __grid_constant__ NAME##_params p) {           \
    extern __shared__ __align__(16) char smem[];                \
    NAME##_stage(blockIdx.x, p, smem);                          \
  }

// Stands before every load.
TGC_DEVICE void edge_early() {
#if TGC_EDGE == TGC_EDGE_SIGNAL_WAIT
  tgc_grid_signal();
  tgc_grid_wait();
#elif TGC_EDGE == TGC_EDGE_WAIT_LATE
  tgc_grid_wait();
  tgc_grid_signal();
#endif
}
// Stands after the loads of what no direct predecessor writes, and before all others.
TGC_DEVICE void edge_late() {
#if TGC_EDGE == TGC_EDGE_WAIT_SIGNAL
  tgc_grid_wait();
  tgc_grid_signal();
#elif TGC_EDGE == TGC_EDGE_NO_SIGNAL || TGC_EDGE == TGC_EDGE_SIGNAL_LATE
  tgc_grid_wait();
#endif
}
// Stands where the kernel has loaded what it needs.
TGC_DEVICE void edge_loaded() {
#if TGC_EDGE == TGC_EDGE_SIGNAL_LATE
  tgc_grid_signal();
#endif
}

typedef tgc_vector<float, 4> float_4;

#ifndef TGC_EMULATOR
// Streaming accesses: the line is marked evict_first in L2.
TGC_DEVICE float_4 load_stream(const float* pointer, long long index) {
  float_4 v;
  asm volatile("ld.global.cs.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.at[0]), "=f"(v.at[1]), "=f"(v.at[2]), "=f"(v.at[3])
               : "l"(pointer + index));
  return v;
}
TGC_DEVICE void copy_async(float* target, const float* source) {
  unsigned int address = (unsigned int)__cvta_generic_to_shared(target);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(source) : "memory");
}
TGC_DEVICE void store_stream(float* pointer, long long index, const float_4& v) {
  asm volatile("st.global.cs.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(pointer + index), "f"(v.at[0]),
               "f"(v.at[1]), "f"(v.at[2]), "f"(v.at[3])
               : "memory");
}
#endif

// Every thread gets the block's value. `slots` holds one float a warp and is not used again by the
// caller's next reduction, so one barrier is enough.
template <int THREADS, class Combine>
TGC_DEVICE float block_reduce(float value, Combine combine, float* slots) {
  constexpr int WARPS = THREADS / 32;
  value = tgc_warp_reduce(value, combine);
  if constexpr (WARPS > 1) {
    if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = value;
    __syncthreads();
    if constexpr (WARPS > 8) {
      value = tgc_warp_reduce_first(slots[threadIdx.x % WARPS % 32], combine, WARPS);
    } else {
      value = slots[0];
#pragma unroll
      for (int w = 1; w < WARPS; w++) value = combine(value, slots[w]);
    }
  }
  return value;
}

// Sums P (a power of two, at most 32) values over a warp with P + log2(32 / P) - 1 shuffles in
// place of 5 P: each step halves how many values a lane carries. Lane L ends with the sum of
// values[L / (32 / P)].
template <int HALF, int OFFSET, int P>
TGC_DEVICE void halve(float (&values)[P]) {
  if constexpr (HALF >= 1) {
    bool upper = threadIdx.x & OFFSET;
#pragma unroll
    for (int i = 0; i < HALF; i++) {
      float send = upper ? values[i] : values[i + HALF];
      float keep = upper ? values[i + HALF] : values[i];
      values[i] = keep + tgc_shuffle_xor(send, OFFSET);
    }
    halve<HALF / 2, OFFSET / 2>(values);
  } else if constexpr (OFFSET >= 1) {
    values[0] += tgc_shuffle_xor(values[0], OFFSET);
    halve<0, OFFSET / 2>(values);
  }
}
template <int P>
TGC_DEVICE float warp_sum_many(float (&values)[P]) {
  halve<P / 2, 16>(values);
  return values[0];
}
