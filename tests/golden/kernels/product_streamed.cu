// contract 1 x 8 x 65536 x 1024, tiles of 8 x 256 x 16, split-K 1, 1073741824 FLOPs: matmul.
// Stores matmul (8, 65536) float32.
// Grid 256 x 256 threads, 270565376 bytes moved at least.
TGC_STAGE(contract_matmul_6872b8e5e3,
  const float* in0;
  const float* in1;
  float* out0;
) {
  const int tile_index = virtual_block % 256;
  const int batch = 0;
  const int k_slice = 0;
  const int band = tile_index / 256;
  const int band_rows = 1 - band < 1 ? 1 - band : 1;
  const int tile_m = band + tile_index % 256 % band_rows;
  const int tile_n = tile_index % 256 / band_rows;
  const int tile_thread = threadIdx.x % 64, k_group = threadIdx.x / 64;
  const int lane_m = tile_thread / 32 / 2 * 8 + tile_thread % 32 / 32 * 4;
  const int lane_n =
      tile_thread / 32 % 2 * 128 + tile_thread % 32 % 32 * 4;
  typedef tgc_vector<float, 4> fragment;
  float* const shared_a = reinterpret_cast<float*>(smem);
  float* const shared_b = shared_a + 2 * 16 * 12;
  float prefetch_a[1], prefetch_b[16];
  float sum[8][4] = {};
  float a[2][8], b[2][4];
  const int k_begin = k_slice * 1024;
  const int k_end = k_begin + 1024 < 1024 ? k_begin + 1024 : 1024;
  const int step_b = (tile_n * 256) / 4 + threadIdx.x % 64;
  const int offset1 = step_b * 4;

  auto fetch = [&](int k_first) {
    {
      const int step_a = k_first + threadIdx.x % 16;
      const int offset0 = step_a;
      const int row = threadIdx.x / 16;
      const int m = tile_m * 8 + row;
      prefetch_a[0] = 0.0f;
      if (m < 8 && step_a < k_end && row < 8) {
        const float in0 = tgc_load(p.in0, m * 1024 + offset0);
        prefetch_a[0] = in0;
      }
    }
    {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int row = i * 4 + threadIdx.x / 64;
        const int k = k_first + row;
#pragma unroll
        for (int v = 0; v < 4; v++) prefetch_b[i * 4 + v] = 0.0f;
        if (k < k_end && step_b < 16384) {
          const tgc_vector<float, 4> in1x4 = tgc_load_vector<4>(p.in1, k * 65536 + offset1);
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
          shared_a + buffer * 16 * 12 + threadIdx.x % 16 * 12 + threadIdx.x / 16;
#pragma unroll
      for (int i = 0; i < 1; i++) {
        if (i * 16 + threadIdx.x / 16 >= 8) break;
        tile[i * 16] = prefetch_a[i];
      }
    }
    {
      float* const tile =
          shared_b + buffer * 16 * 260 + threadIdx.x % 64 * 4 + threadIdx.x / 64 * 260;
#pragma unroll
      for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int v = 0; v < 4; v++)
          tile[i * 4 * 260 + v] = prefetch_b[i * 4 + v];
      }
    }
  };
  auto read = [&](int slot, int buffer, int step) {
    const int shared_row = buffer * 16 + step * 4 + k_group;
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
      const fragment fragment_a = *reinterpret_cast<const fragment*>(
          shared_a + shared_row * 12 + lane_m + i / 4 * 4 + i % 4);
#pragma unroll
      for (int q = 0; q < 4; q++) a[slot][i + q] = fragment_a.at[q];
    }
    const fragment fragment_b = *reinterpret_cast<const fragment*>(
        shared_b + shared_row * 260 + lane_n);
#pragma unroll
    for (int q = 0; q < 4; q++) b[slot][q] = fragment_b.at[q];
  };

  fetch(k_begin);
  put(0);
  __syncthreads();
  read(0, 0, 0);
  int buffer = 0;
#pragma unroll 1
  for (int k_first = k_begin; k_first < k_end; k_first += 16) {
    fetch(k_first + 16);  // beyond the last tile nothing is loaded
#pragma unroll
    for (int step = 0; step < 4; step++) {
      if (step + 1 < 4) {
        read((step + 1) % 2, buffer, step + 1);
      } else {  // so early that the last products hide the latency of shared memory
        put(buffer ^ 1);
        __syncthreads();
        read(0, buffer ^ 1, 0);
      }
#pragma unroll
      for (int i = 0; i < 8; i++)
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
  for (int i = 0; i < 8; i++)
#pragma unroll
    for (int j = 0; j < 4; j++)
      shared_sum[(k_group * 8 + lane_m + i / 4 * 4 + i % 4) * 256 + lane_n +
                 j / 4 * 128 + j % 4] = sum[i][j];
  __syncthreads();
#pragma unroll
  for (int turn = 0; turn < 2; turn++) {
    const int e = turn * 256 + threadIdx.x;
    if (e >= 512) continue;
    const int m = tile_m * 8 + e / 64;
    const int strip = tile_n * 64 + e % 64;
    if (m >= 8 || strip >= 16384) continue;
    tgc_vector<float, 4> out0x4;
#pragma unroll
    for (int v = 0; v < 4; v++) {
      float total = shared_sum[e * 4 + v];
#pragma unroll
      for (int other = 1; other < 4; other++) {
        const float addend = shared_sum[other * 8 * 256 + e * 4 + v];
        total = (float)(total + addend);
      }
      out0x4.at[v] = tgc_to_storage<float>(total);
    }
    tgc_store_vector(p.out0, m * 65536 + strip * 4, out0x4);
  }
}
