// ROW, 64 rows of 1000, 256 threads each, 3 loops, in registers: max sub exp sum div.
// Stores div (64, 1000) float32.
// Grid 64 x 256 threads, 512000 bytes moved at least.
struct row_max_sum_sub_exp_div_42ea9d35ff_params {
  const float* in0;
  float* out0;
};
__device__ __forceinline__ void row_max_sum_sub_exp_div_42ea9d35ff_stage(int virtual_block, const row_max_sum_sub_exp_div_42ea9d35ff_params& p,
                                             char* smem) {
  const int thread = threadIdx.x % 256;
  const int line = virtual_block * 1 + threadIdx.x / 256;
  if (line >= 64) return;
  tgc_vector<float, 4> h1[1];
  float h5[1][4];
  float r0 = tgc_lowest<float>();
#pragma unroll 1
  for (int k = 0; k < 1; k++) {
    const int item = k * 256 + thread;
    if (item < 250) {
      h1[k] = tgc_load_vector<4>(p.in0, line * 1000 + item * 4);
#pragma unroll
      for (int v = 0; v < 4; v++) {
        const float x2 = tgc_element(h1[k], v);
        r0 = tgc_max_op()(r0, x2);
      }
    }
  }
  tgc_block_send(r0, tgc_max_op(), smem);
  __syncthreads();
  tgc_block_receive<8>(r0, tgc_max_op(), smem);
  float r1 = 0.0f;
#pragma unroll 1
  for (int k = 0; k < 1; k++) {
    const int item = k * 256 + thread;
    if (item < 250) {
#pragma unroll
      for (int v = 0; v < 4; v++) {
        const float x3 = tgc_element(h1[k], v);
        const float x4 = x3 - r0;
        h5[k][v] = tgc_exp(x4);
        r1 = tgc_sum_op()(r1, h5[k][v]);
      }
    }
  }
  tgc_block_send(r1, tgc_sum_op(), smem + 128);
  __syncthreads();
  tgc_block_receive<8>(r1, tgc_sum_op(), smem + 128);
  const tgc_divisor x6 = tgc_divisor_of(r1);
#pragma unroll 1
  for (int k = 0; k < 1; k++) {
    const int item = k * 256 + thread;
    if (item < 250) {
      tgc_vector<float, 4> y8;
#pragma unroll
      for (int v = 0; v < 4; v++) {
        const float x7 = tgc_divide(h5[k][v], x6);
        y8.at[v] = tgc_to_storage<float>(x7);
      }
      tgc_store_vector(p.out0, line * 1000 + item * 4, y8);
    }
  }
}
