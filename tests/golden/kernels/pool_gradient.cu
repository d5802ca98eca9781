// row_reduce, 16 rows of 12800, 256 threads each, 1 loops, read once: where sum.
// Stores where (128, 16, 10, 10) float32; sum (1, 16, 1, 1) float32.
// Grid 16 x 256 threads, 1433664 bytes moved at least.
TGC_STAGE(row_reduce_sum_where_e87aedac2e,
  const bool* in0;
  const bool* in1;
  const float* in2;
  float* out0;
  float* out1;
) {
  const int thread = threadIdx.x % 256;
  const int row = virtual_block + threadIdx.x / 256;
  if (row >= 16) return;
  float sum0 = 0.0f;
#pragma unroll 1
  for (int start = thread; start < 3200; start += 2048) {
    tgc_vector<bool, 4> in0x4[8];
    bool in1[8][4];
    float in2[8][4];
#pragma unroll
    for (int k = 0; k < 8; k++) {
      const int item = start + k * 256;
      if (item < 3200) {
        in0x4[k] = tgc_load_vector<4>(p.in0, item / 25 * 1600 + row * 100 + item % 25 * 4);
#pragma unroll
        for (int v = 0; v < 4; v++) {
          in1[k][v] = tgc_load(p.in1, item / 25 * 1600 + row * 100 + item / 5 % 5 * 20 + (item * 2 + v / 2) %
              5 * 4 + (item % 25 * 2 + v / 2) / 5 % 2 * 2 + v % 2);
          in2[k][v] = tgc_load(p.in2, item / 25 * 400 + row * 25 + item / 5 % 5 * 5 + (item * 2 + v / 2) % 5);
        }
      }
    }
#pragma unroll
    for (int k = 0; k < 8; k++) {
      const int item = start + k * 256;
      if (item < 3200) {
        tgc_vector<float, 4> out0x4;
#pragma unroll
        for (int v = 0; v < 4; v++) {
          const bool in0 = tgc_element(in0x4[k], v);
          const float where0 = in1[k][v] ? in2[k][v] : 0.0f;
          const float where1 = in0 ? 0.0f : where0;
          sum0 = tgc_sum_op()(sum0, where1);
          out0x4.at[v] = tgc_to_storage<float>(where1);
        }
        tgc_store_vector(p.out0, item / 25 * 1600 + row * 100 + item % 25 * 4, out0x4);
      }
    }
  }
  tgc_block_send(sum0, tgc_sum_op(), smem);
  __syncthreads();
  tgc_block_receive<8>(sum0, tgc_sum_op(), smem);
  if (thread == 0) {
    tgc_store(p.out1, row, sum0);
  }
}
