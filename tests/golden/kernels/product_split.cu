// contract 1 x 32 x 32 x 4096, tiles of 16 x 32 x 64, k in 64 parts, 8388608 FLOPs: matmul.
// Stores matmul (32, 32) float32.
// Grid 128 x 256 threads, 1310720 bytes moved at least.
TGC_STAGE(contract_matmul_parts_3990d216a3,
  const float* in0;
  const float* in1;
  float* partial0;
) {
  const int tile_number = virtual_block % 2;
  const int batch = 0;
  const int part = virtual_block / 2;
  const int band = tile_number / 2 * 2;
  const int band_rows = 2 - band < 2 ? 2 - band : 2;
  const int tile_m = band + tile_number % 2 % band_rows;
  const int tile_n = tile_number % 2 / band_rows;
  const int place = threadIdx.x % 32, group = threadIdx.x / 32;
  const int lane_m = place / 32 * 16 + place % 32 / 8 * 4;
  const int lane_n = place % 32 % 8 * 4;
  typedef tgc_vector<float, 4> fragment;
  float* const shared_a = reinterpret_cast<float*>(smem);
  float* const shared_b = shared_a + 2 * 64 * 20;
  float hold_a[4], hold_b[8];
  float sum[4][4] = {};
  float a[2][4], b[2][4];
  const int k_begin = part * 64;
  const int k_last = k_begin + 64 < 4096 ? k_begin + 64 : 4096;
  const int step_b = (tile_n * 32) / 4 + threadIdx.x % 8;
  const int offset1 = step_b * 4;

  auto fetch = [&](int k_first) {
    {
      const int step_a = k_first / 4 + (threadIdx.x % 4 + threadIdx.x / 64 * 4);
      const int offset0 = step_a * 4;
      const int row = threadIdx.x / 4 % 16;
      const int m = tile_m * 16 + row;
#pragma unroll
      for (int v = 0; v < 4; v++) hold_a[v] = 0.0f;
      if (m < 32 && step_a * 4 < k_last) {
        const tgc_vector<float, 4> in0x4 = tgc_load_vector<4>(p.in0, m * 4096 + offset0);
#pragma unroll
        for (int v = 0; v < 4; v++) {
          const float in0 = tgc_element(in0x4, v);
          hold_a[v] = in0;
        }
      }
    }
    {
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const int row = i * 32 + threadIdx.x / 8;
        const int k = k_first + row;
#pragma unroll
        for (int v = 0; v < 4; v++) hold_b[i * 4 + v] = 0.0f;
        if (k < k_last && step_b < 8) {
          const tgc_vector<float, 4> in1x4 = tgc_load_vector<4>(p.in1, k * 32 + offset1);
#pragma unroll
          for (int v = 0; v < 4; v++) {
            const float in1 = tgc_element(in1x4, v);
            hold_b[i * 4 + v] = in1;
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
        tile[v * 20] = hold_a[v];
    }
    {
      float* const tile =
          shared_b + buffer * 64 * 36 + threadIdx.x % 8 * 4 + threadIdx.x / 8 * 36;
#pragma unroll
      for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int v = 0; v < 4; v++)
          tile[i * 32 * 36 + v] = hold_b[i * 4 + v];
      }
    }
  };
  auto read = [&](int slot, int buffer, int step) {
    const int line = buffer * 64 + step * 8 + group;
    const fragment part_a = *reinterpret_cast<const fragment*>(
        shared_a + line * 20 + lane_m);
#pragma unroll
    for (int q = 0; q < 4; q++) a[slot][q] = part_a.at[q];
    const fragment part_b = *reinterpret_cast<const fragment*>(
        shared_b + line * 36 + lane_n);
#pragma unroll
    for (int q = 0; q < 4; q++) b[slot][q] = part_b.at[q];
  };

  fetch(k_begin);
  put(0);
  __syncthreads();
  read(0, 0, 0);
  int buffer = 0;
#pragma unroll 1
  for (int k_first = k_begin; k_first < k_last; k_first += 64) {
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
      shared_sum[(group * 16 + lane_m + i / 4 * 16 + i % 4) * 32 + lane_n +
                 j / 4 * 32 + j % 4] = sum[i][j];
  __syncthreads();
#pragma unroll
  for (int turn = 0; turn < 1; turn++) {
    const int e = turn * 256 + threadIdx.x;
    if (e >= 256) continue;
    const int m = tile_m * 16 + e / 16;
    const int strip = tile_n * 16 + e % 16;
    if (m >= 32 || strip >= 16) continue;
#pragma unroll
    for (int v = 0; v < 2; v++) {
      float total = shared_sum[e * 2 + v];
#pragma unroll
      for (int other = 1; other < 8; other++) {
        const float more = shared_sum[other * 16 * 32 + e * 2 + v];
        total = (float)(total + more);
      }
      tgc_store(p.partial0, part * 1024LL + m * 32 + strip * 2 + v, total);
    }
  }
}

// Second stage, 1024 sums of 64 parts: matmul.
// Stores matmul (32, 32) float32.
// Grid 32 x 256 threads, 266240 bytes moved at least.
TGC_STAGE(contract_matmul_join_e0192b6333,
  float* partial0;
  float* out0;
) {
  float* const shared = reinterpret_cast<float*>(smem);
  const int place = threadIdx.x % 32, group = threadIdx.x / 32;
  const int item = virtual_block * 32 + place;
  float sum = 0.0f;
  if (item < 1024) {
#pragma unroll 16
    for (int turn = 0; turn < 8; turn++) {
      const int part = turn * 8 + group;
      if (part < 64) sum = (float)(sum + tgc_load(p.partial0, part * 1024LL + item));
    }
  }
  shared[threadIdx.x] = sum;
  __syncthreads();
  if (group == 0 && item < 1024) {
    float total = sum;
#pragma unroll
    for (int other = 1; other < 8; other++) total = (float)(total + shared[other * 32 + place]);
    tgc_store(p.out0, item, total);
  }
}
