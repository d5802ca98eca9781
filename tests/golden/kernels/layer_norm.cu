// ROW, 64 rows of 256, 32 threads each, 3 loops, in registers: sum mul sub mul sum mul add rsqrt mul mul add.
// Stores add (64, 256) float32.
// Grid 8 x 256 threads, 133120 bytes moved at least.
struct row_sum_mul_sub_add_rsqrt_be7641a17b_params {
  const float* in0;
  const float* in1;
  const float* in2;
  float* out0;
};
__device__ __forceinline__ void row_sum_mul_sub_add_rsqrt_be7641a17b_stage(int virtual_block, const row_sum_mul_sub_add_rsqrt_be7641a17b_params& p,
                                             char* smem) {
  const int thread = threadIdx.x % 32;
  const int line = virtual_block * 8 + threadIdx.x / 32;
  if (line >= 64) return;
  float h1[8];
  float h10[8];
  float h12[8];
  float r0 = 0.0f;
#pragma unroll 8
  for (int k = 0; k < 8; k++) {
    const int item = k * 32 + thread;
    if (item < 256) {
      h1[k] = tgc_load(p.in0, line * 256 + item);
#pragma unroll
      for (int v = 0; v < 1; v++) {
        r0 = tgc_sum_op()(r0, h1[k]);
      }
    }
  }
  r0 = tgc_warp_reduce(r0, tgc_sum_op());
  const float x2 = r0 * 0.00390625f;
  float r1 = 0.0f;
#pragma unroll 8
  for (int k = 0; k < 8; k++) {
    const int item = k * 32 + thread;
    if (item < 256) {
      const float x3 = h1[k] - x2;
      const float x4 = x3 * x3;
#pragma unroll
      for (int v = 0; v < 1; v++) {
        r1 = tgc_sum_op()(r1, x4);
      }
    }
  }
  r1 = tgc_warp_reduce(r1, tgc_sum_op());
  const float x6 = r1 * 0.00390625f;
  const float x7 = x6 + 1e-05f;
  const float x8 = tgc_rsqrt(x7);
#pragma unroll 8
  for (int k = 0; k < 8; k++) {
    const int item = k * 32 + thread;
    if (item < 256) {
      const float x5 = h1[k] - x2;
      const float x9 = x5 * x8;
      h10[k] = tgc_load(p.in1, item);
      const float x11 = x9 * h10[k];
      h12[k] = tgc_load(p.in2, item);
      const float x13 = x11 + h12[k];
#pragma unroll
      for (int v = 0; v < 1; v++) {
        tgc_store(p.out0, line * 256 + item, x13);
      }
    }
  }
}
