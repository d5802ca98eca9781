// row_reduce, 16 rows of 1152, 256 threads each, 1 loops, in registers: welford output output.
// Stores output (1, 16, 1, 1) float32; output (1, 16, 1, 1) float32.
// Grid 16 x 256 threads, 73856 bytes moved at least.
TGC_STAGE(row_reduce_welford_85376f899f,
  const float* in0;
  float* out0;
  float* out1;
) {
  const int thread = threadIdx.x % 256;
  const int row = virtual_block + threadIdx.x / 256;
  if (row >= 16) return;
  tgc_welford<float> welford0 = {0, 0, 0};
#pragma unroll 5
  for (int k = 0; k < 5; k++) {
    if (const int item = k * 256 + thread; item < 1152) {
      const float in0 = tgc_load(p.in0, item / 144 * 2304 + row * 144 + item % 144);
      welford0 = tgc_welford_add(welford0, in0);
    }
  }
  tgc_block_send(welford0, tgc_welford_op(), smem);
  __syncthreads();
  tgc_block_receive<8>(welford0, tgc_welford_op(), smem);
  if (thread == 0) {
    tgc_store(p.out0, row, welford0.mean);
    tgc_store(p.out1, row, welford0.m2);
  }
}
