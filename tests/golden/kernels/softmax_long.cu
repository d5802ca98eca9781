// row_reduce, 80 rows of 20000, 256 threads each, 3 loops, read again in each phase: max sub exp sum div.
// Stores div (80, 20000) float32.
// Grid 80 x 256 threads, 12800000 bytes moved at least.
TGC_STAGE(row_reduce_max_sum_sub_exp_div_fe866334b5,
  const float* in0;
  float* out0;
) {
  const int thread = threadIdx.x % 256;
  const int row = virtual_block + threadIdx.x / 256;
  if (row >= 80) return;
  float max0 = tgc_lowest<float>();
#pragma unroll 4
  for (int item = thread; item < 5000; item += 256) {
    const tgc_vector<float, 4> in0x4 = tgc_load_vector<4>(p.in0, row * 20000 + item * 4);
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
#pragma unroll 4
  for (int reversed = thread; reversed < 5000; reversed += 256) {
    const int item = 4999 - reversed;
    const tgc_vector<float, 4> in0x4_1 = tgc_load_vector<4>(p.in0, row * 20000 + item * 4);
#pragma unroll
    for (int v = 0; v < 4; v++) {
      const float in0_1 = tgc_element(in0x4_1, v);
      const float sub0 = in0_1 - max0;
      const float exp0 = tgc_exp(sub0);
      sum0 = tgc_sum_op()(sum0, exp0);
    }
  }
  tgc_block_send(sum0, tgc_sum_op(), smem + 128);
  __syncthreads();
  tgc_block_receive<8>(sum0, tgc_sum_op(), smem + 128);
  const tgc_divisor divisor0 = tgc_divisor_of(sum0);
#pragma unroll 1
  for (int start = thread; start < 5000; start += 2048) {
    tgc_vector<float, 4> in0x4_2[8];
    float exp1[8][4];
#pragma unroll
    for (int k = 0; k < 8; k++) {
      const int item = start + k * 256;
      if (item < 5000) {
        in0x4_2[k] = tgc_load_vector<4>(p.in0, row * 20000 + item * 4);
      }
    }
#pragma unroll
    for (int k = 0; k < 8; k++) {
      const int item = start + k * 256;
      if (item < 5000) {
        tgc_vector<float, 4> out0x4;
#pragma unroll
        for (int v = 0; v < 4; v++) {
          const float in0_2 = tgc_element(in0x4_2[k], v);
          const float sub1 = in0_2 - max0;
          exp1[k][v] = tgc_exp(sub1);
          const float div0 = tgc_divide(exp1[k][v], divisor0);
          out0x4.at[v] = tgc_to_storage<float>(div0);
        }
        tgc_store_vector(p.out0, row * 20000 + item * 4, out0x4);
      }
    }
  }
}
