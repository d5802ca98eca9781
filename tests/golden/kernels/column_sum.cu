// column_reduce, 96 columns of 5000, each in 39 parts: sum.
// Stores sum (1, 96) float32.
// Grid 117 x 256 threads, 1979904 bytes moved at least.
TGC_STAGE(column_reduce_sum_parts_2dd77fdc3f,
  const float* in0;
  float* partial0;
) {
  const int across = threadIdx.x % 32;
  const int down = threadIdx.x / 32;
  const int tile = virtual_block / 39;
  const int part = virtual_block % 39;
  const int own_strip = tile * 32 + across;
  const bool live = own_strip < 96;
  const int strip = live ? own_strip : 95;  // a spare thread repeats the last and stores nothing
  float sum0 = 0.0f;
  const int first = part * 129;
  const int last = first + 129 < 5000 ? first + 129 : 5000;
#pragma unroll 4
  for (int item = first + down; item < last; item += 8) {
    const float in0 = tgc_load(p.in0, item * 96 + strip);
    sum0 = tgc_sum_op()(sum0, in0);
  }
  {
    float* shared = reinterpret_cast<float*>(smem);
    shared[threadIdx.x] = sum0;
    __syncthreads();
    for (int half = 4; half > 0; half /= 2) {
      if (down < half) {
        float* own = shared + threadIdx.x;
        *own = sum0 = tgc_sum_op()(sum0, own[half * 32]);
      }
      __syncthreads();
    }
  }
  if (down == 0 && live) {
    tgc_store(p.partial0, strip * 39 + part, sum0);
  }
}

// Second stage, 96 rows of 39 parts: sum.
// Stores sum (1, 96) float32.
// Grid 12 x 256 threads, 60288 bytes moved at least.
TGC_STAGE(column_reduce_sum_join_daba0f8eab,
  float* partial0;
  float* out0;
) {
  const int thread = threadIdx.x % 32;
  const int row = virtual_block * 8 + threadIdx.x / 32;
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
