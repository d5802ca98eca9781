// contract 1 x 2048 x 1024 x 512 by wgmma tf32x3, tiles of 128 x 128 x 32, split-K 1, 2147483648 FLOPs: matmul
//   add maximum.
// Stores maximum (2048, 1024) float32.
// Grid 128 x 256 threads, 14684160 bytes moved at least.
TGC_STAGE(contract_matmul_add_maximum_17c55830f5,
  const float* in0;
  const float* in1;
  const float* in2;
  float* out0;
) {
  char* const shared_a = smem;
  char* const parts_b = smem + 4 * 18432;  // high and low of a tile, then of the next
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = threadIdx.x / 128;
  const int group_m = group * 64, group_n = 0;
  const int warp_m = group_m + warp % 4 * 16, warp_n = group_n;
  const char* const matrix_a = shared_a + (warp_m + lane % 16) * 144 + lane / 16 * 16;
  const unsigned long long matrix_b =
      tgc_wgmma_descriptor(parts_b + group_n * 128, 8 * 128, 8 * 128, 8);
  float prefetch_b[16];

  auto begin = [&](int block) {  // the first copies for a tile of outputs
    const int tile_index = block % 128;
    const int batch = 0;
    const int k_slice = block / 128;
    const int band = tile_index / 64 * 8;
    const int band_rows = 16 - band < 8 ? 16 - band : 8;
    const int tile_m = band + tile_index % 64 % band_rows;
    const int tile_n = tile_index % 64 / band_rows;
    const int k_begin = k_slice * 512;
    const int k_end = k_begin + 512 < 512 ? k_begin + 512 : 512;
    auto copy = [&](int k_first, int slot) {
      if (k_first < k_end) {
        const int step_a = (k_first) / 4 + threadIdx.x % 8;
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const int row = i * 32 + threadIdx.x / 8;
          const int m = tile_m * 128 + row;
          const bool inside = m < 2048 && step_a * 4 < k_end;
          tgc_copy_async16(shared_a + slot * 18432 + row * 144 + ((threadIdx.x % 8) * 4) * 4,
                           p.in0 + (inside ? m * 512 + step_a * 4 : 0), inside);
        }
      }
      tgc_copy_commit();
    };
    auto fetch_parts = [&](int k_first) {
      if (k_first >= k_end) return;
      const int step_b = k_first / 4 + threadIdx.x % 8;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int row = i * 32 + threadIdx.x / 8;
        const int n = tile_n * 128 + row;
#pragma unroll
        for (int v = 0; v < 4; v++) prefetch_b[i * 4 + v] = 0.0f;
        if (n < 1024 && step_b * 4 < k_end) {
          const tgc_vector<float, 4> in1x4 = tgc_load_vector<4>(p.in1, n * 512 + step_b * 4);
#pragma unroll
          for (int v = 0; v < 4; v++) {
            const float in1 = tgc_element(in1x4, v);
            prefetch_b[i * 4 + v] = in1;
          }
        }
      }
    };
    auto put_parts = [&](int turn) {
      char* const tile = parts_b + turn * 32768;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int row = i * 32 + threadIdx.x / 8;
        tgc_vector<float, 4> high, low;
#pragma unroll
        for (int v = 0; v < 4; v++) {
          unsigned parts[2];
          tgc_tf32_split_unsaturated(__float_as_uint(prefetch_b[i * 4 + v]), parts[0], parts[1]);
          high.at[v] = __uint_as_float(parts[0]);
          low.at[v] = __uint_as_float(parts[1]);
        }
        char* const at = tile + row * 128 + ((((threadIdx.x % 8) * 4) / 4 % 8) ^ row % 8) * 16 +
            ((threadIdx.x % 8) * 4) % 4 * 4;
        *reinterpret_cast<tgc_vector<float, 4>*>(at) = high;
        *reinterpret_cast<tgc_vector<float, 4>*>(at + 16384) = low;
      }
    };
#pragma unroll 1
    for (int slot = 0; slot < 3; slot++) {
      copy(k_begin + slot * 32, slot);
    }
    fetch_parts(k_begin);
  };

  begin(virtual_block);
#pragma unroll 1
  for (int block = virtual_block; block < 128; block += 128) {
    const int tile_index = block % 128;
    const int batch = 0;
    const int k_slice = block / 128;
    const int band = tile_index / 64 * 8;
    const int band_rows = 16 - band < 8 ? 16 - band : 8;
    const int tile_m = band + tile_index % 64 % band_rows;
    const int tile_n = tile_index % 64 / band_rows;
    const int k_begin = k_slice * 512;
    const int k_end = k_begin + 512 < 512 ? k_begin + 512 : 512;
    auto copy = [&](int k_first, int slot) {
      if (k_first < k_end) {
        const int step_a = (k_first) / 4 + threadIdx.x % 8;
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const int row = i * 32 + threadIdx.x / 8;
          const int m = tile_m * 128 + row;
          const bool inside = m < 2048 && step_a * 4 < k_end;
          tgc_copy_async16(shared_a + slot * 18432 + row * 144 + ((threadIdx.x % 8) * 4) * 4,
                           p.in0 + (inside ? m * 512 + step_a * 4 : 0), inside);
        }
      }
      tgc_copy_commit();
    };
    auto fetch_parts = [&](int k_first) {
      if (k_first >= k_end) return;
      const int step_b = k_first / 4 + threadIdx.x % 8;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int row = i * 32 + threadIdx.x / 8;
        const int n = tile_n * 128 + row;
#pragma unroll
        for (int v = 0; v < 4; v++) prefetch_b[i * 4 + v] = 0.0f;
        if (n < 1024 && step_b * 4 < k_end) {
          const tgc_vector<float, 4> in1x4 = tgc_load_vector<4>(p.in1, n * 512 + step_b * 4);
#pragma unroll
          for (int v = 0; v < 4; v++) {
            const float in1 = tgc_element(in1x4, v);
            prefetch_b[i * 4 + v] = in1;
          }
        }
      }
    };
    auto put_parts = [&](int turn) {
      char* const tile = parts_b + turn * 32768;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int row = i * 32 + threadIdx.x / 8;
        tgc_vector<float, 4> high, low;
#pragma unroll
        for (int v = 0; v < 4; v++) {
          unsigned parts[2];
          tgc_tf32_split_unsaturated(__float_as_uint(prefetch_b[i * 4 + v]), parts[0], parts[1]);
          high.at[v] = __uint_as_float(parts[0]);
          low.at[v] = __uint_as_float(parts[1]);
        }
        char* const at = tile + row * 128 + ((((threadIdx.x % 8) * 4) / 4 % 8) ^ row % 8) * 16 +
            ((threadIdx.x % 8) * 4) % 4 * 4;
        *reinterpret_cast<tgc_vector<float, 4>*>(at) = high;
        *reinterpret_cast<tgc_vector<float, 4>*>(at + 16384) = low;
      }
    };
    float sum[1][64] = {};
    int slot = 0, free_slot = 4 - 1, turn = 0;
    put_parts(0);
    fetch_parts(k_begin + 32);
    tgc_copy_wait<4 - 2>();
    tgc_proxy_fence();
    __syncthreads();
#pragma unroll 1
    for (int k_first = k_begin; k_first < k_end; k_first += 32) {
      unsigned high[4][4], low[4][4];
#pragma unroll
      for (int step = 0; step < 4; step++) {
        unsigned a[4];
        tgc_ldmatrix_x4(a, matrix_a + slot * 18432 + step * 32);
#pragma unroll
        for (int q = 0; q < 4; q++) tgc_tf32_split_unsaturated(a[q], high[step][q], low[step][q]);
      }
      float part[64];
      const unsigned long long high_b = matrix_b + turn * 2048;
      const unsigned long long low_b = high_b + 16384 / 16;
      tgc_wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; step++) {
        tgc_wgmma_tf32_rs<128>(part, low[step], high_b + step * 2, step > 0);
        tgc_wgmma_tf32_rs<128>(part, high[step], low_b + step * 2, true);
      }
#pragma unroll
      for (int step = 0; step < 4; step++)
        tgc_wgmma_tf32_rs<128>(part, high[step], high_b + step * 2, true);
      tgc_wgmma_commit();
      turn ^= 1;
      put_parts(turn);
      fetch_parts(k_first + 2 * 32);
      copy(k_first + 3 * 32, free_slot);
      tgc_copy_wait<4 - 2>();
      tgc_wgmma_wait<0>();
      tgc_wgmma_complete(part);
#pragma unroll
      for (int q = 0; q < 64; q++) sum[0][q] += part[q];
      tgc_proxy_fence();
      __syncthreads();  // the next tiles are complete, and nobody reads this slot of A any more
      slot = slot + 1 < 4 ? slot + 1 : 0;
      free_slot = free_slot + 1 < 4 ? free_slot + 1 : 0;
    }
    tgc_copy_wait<0>();
    __syncthreads();
    if (block + 128 < 128) begin(block + 128);
    auto exact = [&](int m, int n) {
      float sum = 0;
#pragma unroll 1
      for (int k = k_begin; k < k_end && sum == sum; k++) {
        const float in0 = tgc_load(p.in0, m * 512 + k);
        const float in1_1 = tgc_load(p.in1, n * 512 + k);
        sum = tgc_fma(in0, in1_1, sum);
      }
      return sum;
    };
    // A warp's 16 x columns sums in shared memory. Groups of 8 columns are exchanged by row, so that rows
    // meet different banks, and the halves of the last four groups, so that a row's strips do.
    float* const staged = reinterpret_cast<float*>(smem + 139264) + warp * 1024;
#pragma unroll 2
    for (int part = 0; part < 2; part++) {
      tgc_vector<float, 4> in2x4_ahead[8];
#pragma unroll
      for (int turn = 0; turn < 8; turn++) {
        const int e = turn * 32 + lane;
        const int row = e / (16), column = e % 16;
        const int m = tile_m * 128 + warp_m + part / 2 * 64 + row;
        const int first = tile_n * 128 + warp_n + part % 2 * 64;
        const int strip = first / 4 + column;
        {
          in2x4_ahead[turn] = tgc_load_vector<4>(p.in2, strip * 4);
        }
      }
#pragma unroll
      for (int i = 0; i < 1; i++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
          if (part != i * 2 + c) continue;  // sums are registers: their indices are constants
#pragma unroll
          for (int j = 0; j < 8; j++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
              tgc_vector<float, 2> pair;
              pair.at[0] = sum[i][(c * 8 + j) * 4 + half * 2];
              pair.at[1] = sum[i][(c * 8 + j) * 4 + half * 2 + 1];
              const int at = (j ^ lane / 4 % 8) * 8 + lane % 4 * 2;
              *reinterpret_cast<tgc_vector<float, 2>*>(
                  staged + (half * 8 + lane / 4) * 64 + (at ^ at / 32 * 4)) = pair;
            }
        }
      __syncwarp();
#pragma unroll 4
      for (int turn = 0; turn < 8; turn++) {
        const int e = turn * 32 + lane;
        const int row = e / (16), column = e % 16;
        const int m = tile_m * 128 + warp_m + part / 2 * 64 + row;
        const int first = tile_n * 128 + warp_n + part % 2 * 64;
        const int strip = first / 4 + column;
        {
          float totals[4];
          {
            const int at = column * 4 ^ row % 8 * 8;
            const tgc_vector<float, 4> several =
                *reinterpret_cast<const tgc_vector<float, 4>*>(
                    staged + row * 64 + (at ^ at / 32 * 4));
#pragma unroll
            for (int q = 0; q < 4; q++) totals[q] = several.at[q];
          }
#pragma unroll
          for (int v = 0; v < 4; v++)
            if (!tgc_isfinite(totals[v])) totals[v] = exact(m, strip * 4 + v);
          const tgc_vector<float, 4> in2x4 = in2x4_ahead[turn];
          tgc_vector<float, 4> out0x4;
#pragma unroll
          for (int v = 0; v < 4; v++) {
            const float total = totals[v];
            const float in2 = tgc_element(in2x4, v);
            const float add0 = total + in2;
            const float maximum0 = tgc_max(add0, 0.0f);
            out0x4.at[v] = tgc_to_storage<float>(maximum0);
          }
          tgc_store_vector(p.out0, m * 1024 + strip * 4, out0x4);
        }
      }
      __syncwarp();
    }
  }
}
