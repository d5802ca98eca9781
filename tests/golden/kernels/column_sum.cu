// column_reduce, 96 columns of 5000, each in 39 parts: sum.
// Stores sum (1, 96) float32.
// Grid 117 x 256 threads, 1979904 bytes moved at least.
struct col_sum_parts_4b518343f5_params {
  const float* in0;
  float* partial0;
};
__device__ __forceinline__ void col_sum_parts_4b518343f5_stage(int virtual_block, const col_sum_parts_4b518343f5_params& p,
                                             char* smem) {
  const int across = threadIdx.x % 32;
  const int down = threadIdx.x / 32;
  const int tile = virtual_block / 39;
  const int part = virtual_block % 39;
  const int own_strip = tile * 32 + across;
  const bool live = own_strip < 96;
  const int strip = live ? own_strip : 96 - 1;  // a spare thread repeats the last and stores nothing
  float sum0[1];
#pragma unroll
  for (int v = 0; v < 1; v++) {
    sum0[v] = 0.0f;
  }
  const int first = (int)part * 129;
  const int last = first + 129 < 5000 ? first + 129 : 5000;
#pragma unroll 4
  for (int item = first + down; item < last; item += 8) {
    const float in0 = tgc_load(p.in0, item * 96 + strip);
#pragma unroll
    for (int v = 0; v < 1; v++) {
      sum0[v] = tgc_sum_op()(sum0[v], in0);
    }
  }
  {
    float* shared = reinterpret_cast<float*>(smem);
#pragma unroll
    for (int v = 0; v < 1; v++) shared[v * 256 + threadIdx.x] = sum0[v];
    __syncthreads();
    for (int half = 8 / 2; half > 0; half /= 2) {
      if (down < half) {
#pragma unroll
        for (int v = 0; v < 1; v++) {
          float* own = shared + v * 256 + threadIdx.x;
          *own = sum0[v] = tgc_sum_op()(sum0[v], own[half * 32]);
        }
      }
      __syncthreads();
    }
  }
  if (down == 0 && live) {
#pragma unroll
    for (int v = 0; v < 1; v++) {
      tgc_store(p.partial0, (strip * 1 + v) * 39 + part, sum0[v]);
    }
  }
}

// Second stage, 96 rows of 39 parts: sum.
// Stores sum (1, 96) float32.
// Grid 12 x 256 threads, 60288 bytes moved at least.
struct col_sum_join_aed90df594_params {
  float* partial0;
  float* out0;
};
__device__ __forceinline__ void col_sum_join_aed90df594_stage(int virtual_block, const col_sum_join_aed90df594_params& p,
                                             char* smem) {
  const int thread = threadIdx.x % 32;
  const int row = virtual_block * (256 / 32) + threadIdx.x / 32;
  if (row >= 96) return;
  float sum0 = 0.0f;
#pragma unroll 4
  for (int part = thread; part < 39; part += 32) {
    sum0 = tgc_sum_op()(sum0, tgc_load(p.partial0, row * 39 + part));
  }
  sum0 = tgc_warp_reduce(sum0, tgc_sum_op());
  if (thread == 0) {
    tgc_store(p.out0, row, sum0);
  }
}
