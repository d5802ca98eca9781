// fetch: copies up to 8 arrays from pinned memory of the host into memory of the GPU, and stores up to
// 32 numbers that came with its parameters.
// The grid has a thread for each 16 bytes of the longest array, 256 threads a block. Each byte crosses
// the bus once; the arrays' sizes are rounded up to 16 bytes on both sides.
// Reads are volatile, because the host writes there between two launches.
struct tgc_fetch_params {
  struct {
    const char* from;
    char* to;
    long long items;
  } arrays[8];
  unsigned long long* numbers;
  long long count;
  unsigned long long values[32];
};
__device__ __forceinline__ void tgc_copy_from_host(char* to, const char* from) {
  unsigned a, b, c, d;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "l"(from));
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
               :: "l"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
__device__ __forceinline__ void tgc_fetch_stage(int virtual_block, const tgc_fetch_params& p,
                                                char* smem) {
  const long long item = virtual_block * 256LL + threadIdx.x;
#pragma unroll
  for (int k = 0; k < 8; k++)
    if (item < p.arrays[k].items)
      tgc_copy_from_host(p.arrays[k].to + item * 16, p.arrays[k].from + item * 16);
  if (item < p.count) tgc_store(p.numbers, item, p.values[item]);
}
TGC_KERNEL_MIN_BLOCKS(tgc_fetch, 256, 1)
