// contract 1 x 2048 x 1024 x 512 by mma tf32x3, tiles of 128 x 128 x 16, split-K 1, 2147483648 FLOPs: matmul
//   add maximum.
// Stores maximum (2048, 1024) float32.
// Grid 128 x 256 threads, 14684160 bytes moved at least.
TGC_STAGE(contract_matmul_add_maximum_a7d71b8ded,
  const float* in0;
  const float* in1;
  const float* in2;
  float* out0;
) {
  const int tile_index = virtual_block % 128;
  const int batch = 0;
  const int k_slice = virtual_block / 128;
  const int band = tile_index / 64 * 8;
  const int band_rows = 16 - band < 8 ? 16 - band : 8;
  const int tile_m = band + tile_index % 64 % band_rows;
  const int tile_n = tile_index % 64 / band_rows;
  const int k_begin = k_slice * 512;
  const int k_end = k_begin + 512 < 512 ? k_begin + 512 : 512;
  char* const shared_a = smem;
  char* const shared_b = smem + 4 * 10240;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_m = warp / 4 * 64, warp_n = warp % 4 * 32;
  float sum[4][4][4] = {};
  unsigned a[2][4][4], b[2][4][2];
  auto fetch = [&](int k_first, int slot) {
    if (k_first < k_end) {
      {
        const int step_a = (k_first) / 4 + threadIdx.x % 4;
#pragma unroll
        for (int i = 0; i < 2; i++) {
          const int row = i * 64 + threadIdx.x / 4;
          const int m = tile_m * 128 + row;
          const bool inside = m < 2048 && step_a * 4 < k_end;
          tgc_copy_async16(shared_a + slot * 10240 + row * 80 + ((threadIdx.x % 4) * 4) * 4,
                           p.in0 + (inside ? m * 512 + step_a * 4 : 0), inside);
        }
      }
      {
        const int step_b = (k_first) / 4 + threadIdx.x % 4;
#pragma unroll
        for (int i = 0; i < 2; i++) {
          const int row = i * 64 + threadIdx.x / 4;
          const int n = tile_n * 128 + row;
          const bool inside = n < 1024 && step_b * 4 < k_end;
          tgc_copy_async16(shared_b + slot * 10240 + row * 80 + ((threadIdx.x % 4) * 4) * 4,
                           p.in1 + (inside ? n * 512 + step_b * 4 : 0), inside);
        }
      }
    }
    tgc_copy_commit();
  };
  auto put = [&](int k_first, int slot) {
    if (k_first >= k_end) return;
  };

  const char* const matrix_a = shared_a + (warp_m + lane % 16) * 80 + lane / 16 * 16;
  const char* const matrix_b = shared_b + (warp_n + lane / 16 * 8 + lane % 8) * 80 + lane / 8 % 2 * 16;
  auto read = [&](int target, int slot, int step) {
#pragma unroll
    for (int i = 0; i < 4; i++)
      tgc_ldmatrix_x4(a[target][i], matrix_a + slot * 10240 + i * 1280 + step * 32);
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
      unsigned two[4];
      tgc_ldmatrix_x4(two, matrix_b + slot * 10240 + j / 2 * 1280 + step * 32);
#pragma unroll
      for (int q = 0; q < 4; q++) b[target][j + q / 2][q % 2] = two[q];
    }
  };

#pragma unroll 1
  for (int slot = 0; slot < 3; slot++) {
    fetch(k_begin + slot * 16, slot);
    put(k_begin + slot * 16, slot);
  }
  int slot = 0, free_slot = 3;
#pragma unroll 1
  for (int k_first = k_begin; k_first < k_end; k_first += 16) {
    tgc_copy_wait<4 - 2>();
    __syncthreads();  // the slot is full, and no warp reads the one before it any more
    const int k_next = k_first + 3 * 16;
    fetch(k_next, free_slot);
    read(0, slot, 0);
#pragma unroll
    for (int step = 0; step < 2; step++) {
      if (step + 1 < 2) read((step + 1) % 2, slot, step + 1);
      unsigned high_a[4][4], low_a[4][4];
#pragma unroll
      for (int i = 0; i < 4; i++)
#pragma unroll
        for (int q = 0; q < 4; q++)
          tgc_tf32_split_unsaturated(a[step % 2][i][q], high_a[i][q], low_a[i][q]);
#pragma unroll
      for (int j = 0; j < 4; j++) {
        unsigned high_b[2], low_b[2];
#pragma unroll
        for (int q = 0; q < 2; q++) tgc_tf32_split_unsaturated(b[step % 2][j][q], high_b[q], low_b[q]);
#pragma unroll
        for (int i = 0; i < 4; i++) {
          float part[4] = {};
          tgc_mma_tf32(part, low_a[i], high_b);
          tgc_mma_tf32(part, high_a[i], low_b);
          tgc_mma_tf32(part, high_a[i], high_b);
#pragma unroll
          for (int q = 0; q < 4; q++) sum[i][j][q] += part[q];
        }
      }
    }
    put(k_next, free_slot);
    slot = slot + 1 < 4 ? slot + 1 : 0;
    free_slot = free_slot + 1 < 4 ? free_slot + 1 : 0;
  }
  tgc_copy_wait<0>();
  __syncthreads();
  auto exact = [&](int m, int n) {
    float sum = 0;
#pragma unroll 1
    for (int k = k_begin; k < k_end && sum == sum; k++) {
      const float in0 = tgc_load(p.in0, m * 512 + k);
      const float in1 = tgc_load(p.in1, n * 512 + k);
      sum = tgc_fma(in0, in1, sum);
    }
    return sum;
  };
  // A warp's 16 x columns sums in shared memory. Groups of 8 columns are exchanged by row, so that rows
  // meet different banks, and the halves of the last four groups, so that a row's strips do.
  float* const staged = reinterpret_cast<float*>(smem) + warp * 512;
#pragma unroll 1
  for (int part = 0; part < 4; part++) {
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
      for (int c = 0; c < 1; c++) {
        if (part != i + c) continue;  // sums are registers: their indices are constants
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
          for (int half = 0; half < 2; half++) {
            tgc_vector<float, 2> pair;
            pair.at[0] = sum[i][c * 4 + j][half * 2];
            pair.at[1] = sum[i][c * 4 + j][half * 2 + 1];
            const int at = (j ^ lane / 4 % 4) * 8 + lane % 4 * 2;
            *reinterpret_cast<tgc_vector<float, 2>*>(
                staged + (half * 8 + lane / 4) * 32 + (at ^ at / 32 * 4)) = pair;
          }
      }
    __syncwarp();
#pragma unroll 4
    for (int turn = 0; turn < 4; turn++) {
      const int e = turn * 32 + lane;
      const int row = e / (8), column = e % 8;
      const int m = tile_m * 128 + warp_m + part * 16 + row;
      const int first = tile_n * 128 + warp_n;
      const int strip = first / 4 + column;
      {
        float totals[4];
        {
          const int at = column * 4 ^ row % 4 * 8;
          const tgc_vector<float, 4> several =
              *reinterpret_cast<const tgc_vector<float, 4>*>(
                  staged + row * 32 + (at ^ at / 32 * 4));
#pragma unroll
          for (int q = 0; q < 4; q++) totals[q] = several.at[q];
        }
#pragma unroll
        for (int v = 0; v < 4; v++)
          if (!tgc_isfinite(totals[v])) totals[v] = exact(m, strip * 4 + v);
        const tgc_vector<float, 4> in2x4 = tgc_load_vector<4>(p.in2, strip * 4);
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
