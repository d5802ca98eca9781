// contract 1 x 300 x 170 x 200, tiles of 16 x 32 x 64, split-K 1, 20400000 FLOPs: matmul.
// Stores matmul (300, 170) float32.
// Grid 114 x 256 threads, 580000 bytes moved at least.
TGC_STAGE(contract_matmul_b34ae75fbe,
  const float* in0;
  const float* in1;
  float* out0;
) {
  const int tile_index = virtual_block % 114;
  const int batch = 0;
  const int k_slice = 0;
  const int band = tile_index / 48 * 8;
  const int band_rows = 19 - band < 8 ? 19 - band : 8;
  const int tile_m = band + tile_index % 48 % band_rows;
  const int tile_n = tile_index % 48 / band_rows;
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
  const int k_begin = k_slice * 256;
  const int k_end = k_begin + 256 < 200 ? k_begin + 256 : 200;
  const int step_b = (tile_n * 32) / 2 + threadIdx.x % 16;
  const int offset1 = step_b * 2;

  auto fetch = [&](int k_first) {
    {
      const int step_a = k_first / 4 + (threadIdx.x % 4 + threadIdx.x / 64 * 4);
      const int offset0 = step_a * 4;
      const int row = threadIdx.x / 4 % 16;
      const int m = tile_m * 16 + row;
#pragma unroll
      for (int v = 0; v < 4; v++) prefetch_a[v] = 0.0f;
      if (m < 300 && step_a * 4 < k_end) {
        const tgc_vector<float, 4> in0x4 = tgc_load_vector<4>(p.in0, m * 200 + offset0);
#pragma unroll
        for (int v = 0; v < 4; v++) {
          const float in0 = tgc_element(in0x4, v);
          prefetch_a[v] = in0;
        }
      }
    }
    {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int row = i * 16 + threadIdx.x / 16;
        const int k = k_first + row;
#pragma unroll
        for (int v = 0; v < 2; v++) prefetch_b[i * 2 + v] = 0.0f;
        if (k < k_end && step_b < 85) {
          const tgc_vector<float, 2> in1x2 = tgc_load_vector<2>(p.in1, k * 170 + offset1);
#pragma unroll
          for (int v = 0; v < 2; v++) {
            const float in1 = tgc_element(in1x2, v);
            prefetch_b[i * 2 + v] = in1;
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
          shared_b + buffer * 64 * 36 + threadIdx.x % 16 * 2 + threadIdx.x / 16 * 36;
#pragma unroll
      for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int v = 0; v < 2; v++)
          tile[i * 16 * 36 + v] = prefetch_b[i * 2 + v];
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
    fetch(k_first + 64);  // beyond the last tile nothing is loaded
#pragma unroll
    for (int step = 0; step < 8; step++) {
      if (step + 1 < 8) {
        read((step + 1) % 2, buffer, step + 1);
      } else {  // so early that the last products hide the latency of shared memory
        put(buffer ^ 1);
        __syncthreads();
        read(0, buffer ^ 1, 0);
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
    if (m >= 300 || strip >= 85) continue;
    tgc_vector<float, 2> out0x2;
#pragma unroll
    for (int v = 0; v < 2; v++) {
      float total = shared_sum[e * 2 + v];
#pragma unroll
      for (int other = 1; other < 8; other++) {
        const float addend = shared_sum[other * 16 * 32 + e * 2 + v];
        total = (float)(total + addend);
      }
      out0x2.at[v] = tgc_to_storage<float>(total);
    }
    tgc_store_vector(p.out0, m * 170 + strip * 2, out0x2);
  }
}
