// row_reduce, 64 rows of 1000, 256 threads each, 3 loops, in registers: max sub exp sum div.
// Stores div (64, 1000) float32.
// Grid 64 x 256 threads, 512000 bytes moved at least.
TGC_STAGE(row_reduce_max_sum_sub_exp_div_d3b087b31c,
  const float* in0;
  float* out0;
) {
  const int thread = threadIdx.x % 256;
  const int row = virtual_block + threadIdx.x / 256;
  if (row >= 64) return;
  tgc_vector<float, 4> in0x4;
  float exp0[4];
  float max0 = tgc_lowest<float>();
  if (const int item = thread; item < 250) {
    in0x4 = tgc_load_vector<4>(p.in0, row * 1000 + item * 4);
#pragma unroll
    for (int v = 0; v < 4; v++) {
      const float in0 = tgc_element(in0x4, v);
      max0 = tgc_max_op()(max0, in0);
    }
  }
  tgc_block_send(max0, tgc_max_op(), smem);
  __syncthreads();
  tgc_block_receive<8>(max0, tgc_max_op(), smem);
  float sum0 = 0.0f;
  if (const int item = thread; item < 250) {
#pragma unroll
    for (int v = 0; v < 4; v++) {
      const float in0_1 = tgc_element(in0x4, v);
      const float sub0 = in0_1 - max0;
      exp0[v] = tgc_exp(sub0);
      sum0 = tgc_sum_op()(sum0, exp0[v]);
    }
  }
  tgc_block_send(sum0, tgc_sum_op(), smem + 128);
  __syncthreads();
  tgc_block_receive<8>(sum0, tgc_sum_op(), smem + 128);
  const tgc_divisor divisor0 = tgc_divisor_of(sum0);
  if (const int item = thread; item < 250) {
    tgc_vector<float, 4> out0x4;
#pragma unroll
    for (int v = 0; v < 4; v++) {
      const float div0 = tgc_divide(exp0[v], divisor0);
      out0x4.at[v] = tgc_to_storage<float>(div0);
    }
    tgc_store_vector(p.out0, row * 1000 + item * 4, out0x4);
  }
}
