// row_reduce, 1 rows of 1048576, each in 512 parts: sum.
// Stores sum (1,) float32.
// Grid 512 x 256 threads, 4202496 bytes moved at least.
TGC_STAGE(row_reduce_sum_parts_54e749446c,
  const float* in0;
  float* partial0;
) {
  const int thread = threadIdx.x;
  const int row = virtual_block / 512;
  const int part = virtual_block % 512;
  float sum0 = 0.0f;
#pragma unroll 4
  for (int item = part * 256 + thread; item < 262144; item += 131072) {
    const tgc_vector<float, 4> in0x4 = tgc_load_vector<4>(p.in0, item * 4);
#pragma unroll
    for (int v = 0; v < 4; v++) {
      const float in0 = tgc_element(in0x4, v);
      sum0 = tgc_sum_op()(sum0, in0);
    }
  }
  tgc_block_send(sum0, tgc_sum_op(), smem);
  __syncthreads();
  tgc_block_receive<8>(sum0, tgc_sum_op(), smem);
  if (thread == 0) {
    tgc_store(p.partial0, row * 512 + part, sum0);
  }
}

// Second stage, 1 rows of 512 parts: sum.
// Stores sum (1,) float32.
// Grid 1 x 256 threads, 8196 bytes moved at least.
TGC_STAGE(row_reduce_sum_join_546670c1c5,
  float* partial0;
  float* out0;
) {
  const int thread = threadIdx.x % 256;
  const int row = virtual_block + threadIdx.x / 256;
  if (row >= 1) return;
  float sum0 = 0.0f;
#pragma unroll 4
  for (int part = thread; part < 512; part += 256) {
    sum0 = tgc_sum_op()(sum0, tgc_load(p.partial0, row * 512 + part));
  }
  tgc_block_send(sum0, tgc_sum_op(), smem);
  __syncthreads();
  tgc_block_receive<8>(sum0, tgc_sum_op(), smem);
  if (thread == 0) {
    tgc_store(p.out0, 0, sum0);
  }
}
