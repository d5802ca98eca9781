// row_reduce, 64 rows of 256, 32 threads each, 3 loops, in registers: sum mul sub mul sum mul add rsqrt mul
//   mul add.
// Stores add (64, 256) float32.
// Grid 8 x 256 threads, 133120 bytes moved at least.
TGC_STAGE(row_reduce_sum_mul_sub_add_rsqrt_431a47b94c,
  const float* in0;
  const float* in1;
  const float* in2;
  float* out0;
) {
  const int thread = threadIdx.x % 32;
  const int row = virtual_block * 8 + threadIdx.x / 32;
  if (row >= 64) return;
  float in0[8];
  float in1[8];
  float in2[8];
  float sum0 = 0.0f;
#pragma unroll 8
  for (int k = 0; k < 8; k++) {
    if (const int item = k * 32 + thread; item < 256) {
      in0[k] = tgc_load(p.in0, row * 256 + item);
      sum0 = tgc_sum_op()(sum0, in0[k]);
    }
  }
  sum0 = tgc_warp_reduce(sum0, tgc_sum_op());
  const float mean = sum0 * 0.00390625f;
  float sum1 = 0.0f;
#pragma unroll 8
  for (int k = 0; k < 8; k++) {
    if (const int item = k * 32 + thread; item < 256) {
      const float sub0 = in0[k] - mean;
      const float mul0 = sub0 * sub0;
      sum1 = tgc_sum_op()(sum1, mul0);
    }
  }
  sum1 = tgc_warp_reduce(sum1, tgc_sum_op());
  const float var = sum1 * 0.00390625f;
  const float add0 = var + 1e-05f;
  const float rstd = tgc_rsqrt(add0);
#pragma unroll 8
  for (int k = 0; k < 8; k++) {
    if (const int item = k * 32 + thread; item < 256) {
      const float sub1 = in0[k] - mean;
      const float mul1 = sub1 * rstd;
      in1[k] = tgc_load(p.in1, item);
      const float mul2 = mul1 * in1[k];
      in2[k] = tgc_load(p.in2, item);
      const float add1 = mul2 + in2[k];
      tgc_store(p.out0, row * 256 + item, add1);
    }
  }
}
