// contract 4 x 65 x 47 x 33, tiles of 8 x 32 x 64, split-K 1, 806520 FLOPs: matmul.
// Stores matmul (4, 65, 47) bfloat16.
// Grid 72 x 256 threads, 54008 bytes moved at least.
TGC_STAGE(contract_matmul_3274842cca,
  const tgc_bfloat16* in0;
  const tgc_bfloat16* in1;
  tgc_bfloat16* out0;
) {
  const int tile_index = virtual_block % 18;
  const int batch = virtual_block / 18 % 4;
  const int k_slice = 0;
  const int band = tile_index / 16 * 8;
  const int band_rows = 9 - band < 8 ? 9 - band : 8;
  const int tile_m = band + tile_index % 16 % band_rows;
  const int tile_n = tile_index % 16 / band_rows;
  const int tile_thread = threadIdx.x % 16, k_group = threadIdx.x / 16;
  const int lane_m = tile_thread / 32 * 8 + tile_thread % 32 / 8 * 4;
  const int lane_n =
      tile_thread % 32 % 8 * 4;
  typedef tgc_vector<float, 4> fragment;
  float* const shared_a = reinterpret_cast<float*>(smem);
  float* const shared_b = shared_a + 2 * 64 * 12;
  float prefetch_a[2], prefetch_b[8];
  float sum[4][4] = {};
  float a[2][4], b[2][4];
  const int k_begin = k_slice * 64;
  const int k_end = k_begin + 64 < 33 ? k_begin + 64 : 33;

  auto fetch = [&](int k_first) {
    {
      const int step_a = k_first + (threadIdx.x % 16 + threadIdx.x / 64 * 16);
      const int offset0 = batch * 2145 + step_a;
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const int row = i * 4 + threadIdx.x / 16 % 4;
        const int m = tile_m * 8 + row;
        prefetch_a[i] = 0.0f;
        if (m < 65 && step_a < k_end) {
          const float in0 = tgc_load(p.in0, m * 33 + offset0);
          prefetch_a[i] = in0;
        }
      }
    }
    {
      const int step_b = k_first + (threadIdx.x % 16 + threadIdx.x / 64 * 16);
      const int offset1 = batch * 1551 + step_b;
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const int row = i * 4 + threadIdx.x / 16 % 4;
        const int n = tile_n * 32 + row;
        prefetch_b[i] = 0.0f;
        if (n < 47 && step_b < k_end) {
          const float in1 = tgc_load(p.in1, n * 33 + offset1);
          prefetch_b[i] = in1;
        }
      }
    }
  };
  auto put = [&](int buffer) {
    {
      float* const tile =
          shared_a + buffer * 64 * 12 + (threadIdx.x % 16 + threadIdx.x / 64 * 16) * 12 + threadIdx.x / 16 % 4;
#pragma unroll
      for (int i = 0; i < 2; i++) {
        tile[i * 4] = prefetch_a[i];
      }
    }
    {
      float* const tile =
          shared_b + buffer * 64 * 36 + (threadIdx.x % 16 + threadIdx.x / 64 * 16) * 36 + threadIdx.x / 16 % 4;
#pragma unroll
      for (int i = 0; i < 8; i++) {
        tile[i * 4] = prefetch_b[i];
      }
    }
  };
  auto read = [&](int slot, int buffer, int step) {
    const int shared_row = buffer * 64 + step * 16 + k_group;
    const fragment fragment_a = *reinterpret_cast<const fragment*>(
        shared_a + shared_row * 12 + lane_m);
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
    for (int step = 0; step < 4; step++) {
      if (step + 1 < 4) {
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
      shared_sum[(k_group * 8 + lane_m + i / 4 * 8 + i % 4) * 32 + lane_n +
                 j / 4 * 32 + j % 4] = sum[i][j];
  __syncthreads();
#pragma unroll
  for (int turn = 0; turn < 1; turn++) {
    const int e = turn * 256 + threadIdx.x;
    if (e >= 256) continue;
    const int m = tile_m * 8 + e / 32;
    const int strip = tile_n * 32 + e % 32;
    if (m >= 65 || strip >= 47) continue;
    float total = shared_sum[e];
#pragma unroll
    for (int other = 1; other < 16; other++) {
      const float addend = shared_sum[other * 8 * 32 + e];
      total = (float)(total + addend);
    }
    const float rounded0 = tgc_cast<tgc_bfloat16>(total);
    tgc_store(p.out0, batch * 3055 + m * 47 + strip, total);
  }
}
