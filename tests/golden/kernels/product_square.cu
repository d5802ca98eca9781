// contract 1 x 2048 x 2048 x 2048, tiles of 128 x 128 x 16, split-K 1, 17179869184 FLOPs: matmul.
// Stores matmul (2048, 2048) float32.
// Grid 256 x 256 threads, 50331648 bytes moved at least.
TGC_STAGE(contract_matmul_009e578ee0,
  const float* in0;
  const float* in1;
  float* out0;
) {
  const int tile_index = virtual_block % 256;
  const int batch = 0;
  const int k_slice = 0;
  const int band = tile_index / 128 * 8;
  const int band_rows = 16 - band < 8 ? 16 - band : 8;
  const int tile_m = band + tile_index % 128 % band_rows;
  const int tile_n = tile_index % 128 / band_rows;
  const int tile_thread = threadIdx.x % 256, k_group = 0;
  const int lane_m = tile_thread / 32 / 2 * 32 + tile_thread % 32 / 8 * 4;
  const int lane_n =
      tile_thread / 32 % 2 * 64 + tile_thread % 32 % 8 * 4;
  typedef tgc_vector<float, 4> fragment;
  float* const shared_a = reinterpret_cast<float*>(smem);
  float* const shared_b = shared_a + 2 * 16 * 132;
  float prefetch_a[8], prefetch_b[8];
  float sum[8][8] = {};
  float a[2][8], b[2][8];
  const int k_begin = k_slice * 2048;
  const int k_end = k_begin + 2048 < 2048 ? k_begin + 2048 : 2048;
  const int step_b = (tile_n * 128) / 4 + threadIdx.x % 32;
  const int offset1 = step_b * 4;

  auto fetch = [&](int k_first) {
    {
      const int step_a = k_first / 4 + threadIdx.x % 4;
      const int offset0 = step_a * 4;
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const int row = i * 64 + threadIdx.x / 4;
        const int m = tile_m * 128 + row;
#pragma unroll
        for (int v = 0; v < 4; v++) prefetch_a[i * 4 + v] = 0.0f;
        if (m < 2048 && step_a * 4 < k_end) {
          const tgc_vector<float, 4> in0x4 = tgc_load_vector<4>(p.in0, m * 2048 + offset0);
#pragma unroll
          for (int v = 0; v < 4; v++) {
            const float in0 = tgc_element(in0x4, v);
            prefetch_a[i * 4 + v] = in0;
          }
        }
      }
    }
    {
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const int row = i * 8 + threadIdx.x / 32;
        const int k = k_first + row;
#pragma unroll
        for (int v = 0; v < 4; v++) prefetch_b[i * 4 + v] = 0.0f;
        if (k < k_end && step_b < 512) {
          const tgc_vector<float, 4> in1x4 = tgc_load_vector<4>(p.in1, k * 2048 + offset1);
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
          shared_a + buffer * 16 * 132 + threadIdx.x % 4 * 528 + threadIdx.x / 4;
#pragma unroll
      for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int v = 0; v < 4; v++)
          tile[i * 64 + v * 132] = prefetch_a[i * 4 + v];
      }
    }
    {
      float* const tile =
          shared_b + buffer * 16 * 132 + threadIdx.x % 32 * 4 + threadIdx.x / 32 * 132;
#pragma unroll
      for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int v = 0; v < 4; v++)
          tile[i * 8 * 132 + v] = prefetch_b[i * 4 + v];
      }
    }
  };
  auto read = [&](int slot, int buffer, int step) {
    const int shared_row = buffer * 16 + step + k_group;
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
      const fragment fragment_a = *reinterpret_cast<const fragment*>(
          shared_a + shared_row * 132 + lane_m + i / 4 * 16 + i % 4);
#pragma unroll
      for (int q = 0; q < 4; q++) a[slot][i + q] = fragment_a.at[q];
    }
#pragma unroll
    for (int j = 0; j < 8; j += 4) {
      const fragment fragment_b = *reinterpret_cast<const fragment*>(
          shared_b + shared_row * 132 + lane_n + j / 4 * 32 + j % 4);
#pragma unroll
      for (int q = 0; q < 4; q++) b[slot][j + q] = fragment_b.at[q];
    }
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
    for (int step = 0; step < 16; step++) {
      if (step + 1 < 16) {
        read((step + 1) % 2, buffer, step + 1);
      } else {  // so early that the last products hide the latency of shared memory
        put(buffer ^ 1);
        __syncthreads();
        read(0, buffer ^ 1, 0);
      }
#pragma unroll
      for (int i = 0; i < 8; i++)
#pragma unroll
        for (int back = 0; back < 8; back++) {
          const int j = i % 2 ? 8 - 1 - back : back;
          sum[i][j] = tgc_multiply_add(a[step % 2][i], b[step % 2][j], sum[i][j]);
        }
    }
    buffer ^= 1;
  }
  {
    const int opaque_block = tgc_again(virtual_block), opaque_thread = tgc_again(threadIdx.x);
    const int tile_index = opaque_block % 256;
    const int batch = 0;
    const int k_slice = 0;
    const int band = tile_index / 128 * 8;
    const int band_rows = 16 - band < 8 ? 16 - band : 8;
    const int tile_m = band + tile_index % 128 % band_rows;
    const int tile_n = tile_index % 128 / band_rows;
    const int tile_thread = opaque_thread % 256, k_group = 0;
    const int lane_m = tile_thread / 32 / 2 * 32 + tile_thread % 32 / 8 * 4;
    const int lane_n =
        tile_thread / 32 % 2 * 64 + tile_thread % 32 % 8 * 4;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int m = tile_m * 128 + lane_m + i / 4 * 16 + i % 4;
      if (m >= 2048) continue;
#pragma unroll
      for (int j = 0; j < 8; j += 4) {
        const int strip = (tile_n * 128 + lane_n + j / 4 * 32 + j % 4) / 4;
        if (strip >= 512) continue;
        tgc_vector<float, 4> out0x4;
#pragma unroll
        for (int v = 0; v < 4; v++) {
          const float total = sum[i][j + v];
          out0x4.at[v] = tgc_to_storage<float>(total);
        }
        tgc_store_vector(p.out0, m * 2048 + strip * 4, out0x4);
      }
    }
  }
}
