// contract 1 x 32 x 32 x 4096, tiles of 16 x 32 x 64, split-K 64, 8388608 FLOPs: matmul.
// Stores matmul (32, 32) float32.
// Grid 128 x 256 threads, 1310720 bytes moved at least.
TGC_STAGE(contract_matmul_slices_0c5fb79ca4,
  const float* in0;
  const float* in1;
  float* partial0;
  float* out0;
) {
  const int tile_index = virtual_block % 2;
  const int batch = 0;
  const int k_slice = virtual_block / 2;
  const int band = tile_index / 2 * 2;
  const int band_rows = 2 - band < 2 ? 2 - band : 2;
  const int tile_m = band + tile_index % 2 % band_rows;
  const int tile_n = tile_index % 2 / band_rows;
  const int tile_thread = threadIdx.x % 32, k_group = threadIdx.x / 32;
  const int lane_m = tile_thread / 32 * 16 + tile_thread % 32 / 8 * 4;
  const int lane_n =
      tile_thread % 32 % 8 * 4;
  typedef tgc_vector<float, 4> fragment;
  float* const shared_a = reinterpret_cast<float*>(smem);
  float* const shared_b = shared_a + 2 * 64 * 20;
  float prefetch_a[4], prefetch_b[8];
  float sum[4][4] = {};
  float a[2][4], b[2][4];
  const int k_begin = k_slice * 64;
  const int k_end = k_begin + 64 < 4096 ? k_begin + 64 : 4096;
  const int step_b = (tile_n * 32) / 4 + threadIdx.x % 8;
  const int offset1 = step_b * 4;

  auto fetch = [&](int k_first) {
    {
      const int step_a = k_first / 4 + (threadIdx.x % 4 + threadIdx.x / 64 * 4);
      const int offset0 = step_a * 4;
      const int row = threadIdx.x / 4 % 16;
      const int m = tile_m * 16 + row;
#pragma unroll
      for (int v = 0; v < 4; v++) prefetch_a[v] = 0.0f;
      if (m < 32 && step_a * 4 < k_end) {
        const tgc_vector<float, 4> in0x4 = tgc_load_vector<4>(p.in0, m * 4096 + offset0);
#pragma unroll
        for (int v = 0; v < 4; v++) {
          const float in0 = tgc_element(in0x4, v);
          prefetch_a[v] = in0;
        }
      }
    }
    {
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const int row = i * 32 + threadIdx.x / 8;
        const int k = k_first + row;
#pragma unroll
        for (int v = 0; v < 4; v++) prefetch_b[i * 4 + v] = 0.0f;
        if (k < k_end && step_b < 8) {
          const tgc_vector<float, 4> in1x4 = tgc_load_vector<4>(p.in1, k * 32 + offset1);
#pragma unroll
          for (int v = 0; v < 4; v++) {
            const float in1 = tgc_element(in1x4, v);
            prefetch_b[i * 4 + v] = in1;
          }
        }
      }
    }
  };
  auto put = [&](int buffer) {
    {
      float* const tile =
          shared_a + buffer * 64 * 20 + (threadIdx.x % 4 + threadIdx.x / 64 * 4) * 80 + threadIdx.x / 4 % 16;
#pragma unroll
      for (int v = 0; v < 4; v++)
        tile[v * 20] = prefetch_a[v];
    }
    {
      float* const tile =
          shared_b + buffer * 64 * 36 + threadIdx.x % 8 * 4 + threadIdx.x / 8 * 36;
#pragma unroll
      for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int v = 0; v < 4; v++)
          tile[i * 32 * 36 + v] = prefetch_b[i * 4 + v];
      }
    }
  };
  auto read = [&](int slot, int buffer, int step) {
    const int shared_row = buffer * 64 + step * 8 + k_group;
    const fragment fragment_a = *reinterpret_cast<const fragment*>(
        shared_a + shared_row * 20 + lane_m);
#pragma unroll
    for (int q = 0; q < 4; q++) a[slot][q] = fragment_a.at[q];
    const fragment fragment_b = *reinterpret_cast<const fragment*>(
        shared_b + shared_row * 36 + lane_n);
#pragma unroll
    for (int q = 0; q < 4; q++) b[slot][q] = fragment_b.at[q];
  };

  fetch(k_begin);
  put(0);
  __syncthreads();
  read(0, 0, 0);
  int buffer = 0;
#pragma unroll 1
  for (int k_first = k_begin; k_first < k_end; k_first += 64) {
#pragma unroll
    for (int step = 0; step < 8; step++) {
      if (step + 1 < 8) {
        read((step + 1) % 2, buffer, step + 1);
      }
#pragma unroll
      for (int i = 0; i < 4; i++)
#pragma unroll
        for (int back = 0; back < 4; back++) {
          const int j = i % 2 ? 4 - 1 - back : back;
          sum[i][j] = tgc_multiply_add(a[step % 2][i], b[step % 2][j], sum[i][j]);
        }
    }
    buffer ^= 1;
  }
  float* const shared_sum = reinterpret_cast<float*>(smem);
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 4; i++)
#pragma unroll
    for (int j = 0; j < 4; j++)
      shared_sum[(k_group * 16 + lane_m + i / 4 * 16 + i % 4) * 32 + lane_n +
                 j / 4 * 32 + j % 4] = sum[i][j];
  __syncthreads();
#pragma unroll
  for (int turn = 0; turn < 1; turn++) {
    const int e = turn * 256 + threadIdx.x;
    if (e >= 256) continue;
    const int m = tile_m * 16 + e / 16;
    const int strip = tile_n * 16 + e % 16;
    if (m >= 32 || strip >= 16) continue;
    tgc_vector<float, 2> slice;
#pragma unroll
    for (int v = 0; v < 2; v++) {
      float total = shared_sum[e * 2 + v];
#pragma unroll
      for (int other = 1; other < 8; other++) {
        const float addend = shared_sum[other * 16 * 32 + e * 2 + v];
        total = (float)(total + addend);
      }
      slice.at[v] = total;
    }
    tgc_store_vector(k_slice > 0 ? p.partial0 + (k_slice - 1) * 1024LL : p.out0, m * 32 + strip * 2, slice);
  }
}

// Second stage, 1024 sums of 64 slices: matmul.
// Stores matmul (32, 32) float32.
// Grid 32 x 256 threads, 262144 bytes moved at least.
TGC_STAGE(contract_matmul_join_e76bcdd2ed,
  float* partial0;
  float* out0;
) {
  float* const shared = reinterpret_cast<float*>(smem);
  const int result = threadIdx.x % 32, k_group = threadIdx.x / 32;
  const int output = virtual_block * 32 + result;
  float sum = 0.0f;
  if (output < 1024) {
#pragma unroll 16
    for (int turn = 0; turn < 8; turn++) {
      const int k_slice = turn * 8 + k_group;
      const float* const slice = k_slice > 0 ? p.partial0 + (k_slice - 1) * 1024LL : p.out0;
      if (k_slice < 64) sum = (float)(sum + tgc_load(slice, output));
    }
  }
  shared[threadIdx.x] = sum;
  __syncthreads();
  if (k_group == 0 && output < 1024) {
    float total = sum;
#pragma unroll
    for (int other = 1; other < 8; other++) total = (float)(total + shared[other * 32 + result]);
    tgc_store(p.out0, output, total);
  }
}
