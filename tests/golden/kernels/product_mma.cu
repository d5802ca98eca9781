// contract 1 x 512 x 256 x 384 by mma, tiles of 64 x 32 x 64, split-K 1, 100663296 FLOPs: matmul add maximum.
// Stores maximum (512, 256) bfloat16.
// Grid 64 x 256 threads, 852480 bytes moved at least.
TGC_STAGE(contract_matmul_add_maximum_5ff0a2a6e2,
  const tgc_bfloat16* in0;
  const tgc_bfloat16* in1;
  const tgc_bfloat16* in2;
  tgc_bfloat16* out0;
) {
  const int tile_index = virtual_block % 64;
  const int batch = 0;
  const int k_slice = virtual_block / 64;
  const int band = tile_index / 64 * 8;
  const int band_rows = 8 - band < 8 ? 8 - band : 8;
  const int tile_m = band + tile_index % 64 % band_rows;
  const int tile_n = tile_index % 64 / band_rows;
  const int k_begin = k_slice * 384;
  const int k_end = k_begin + 384 < 384 ? k_begin + 384 : 384;
  char* const shared_a = smem;
  char* const shared_b = smem + 4 * 9216;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_m = warp / 2 * 16, warp_n = warp % 2 * 16;
  float sum[1][2][4] = {};
  unsigned a[2][1][4], b[2][2][2];
  auto fetch = [&](int k_first, int slot) {
    if (k_first < k_end) {
      {
        const int step_a = (k_first) / 8 + threadIdx.x % 8;
#pragma unroll
        for (int i = 0; i < 2; i++) {
          const int row = i * 32 + threadIdx.x / 8;
          const int m = tile_m * 64 + row;
          const bool inside = m < 512 && step_a * 8 < k_end;
          tgc_copy_async16(shared_a + slot * 9216 + row * 144 + ((threadIdx.x % 8) * 8) * 2,
                           p.in0 + (inside ? m * 384 + step_a * 8 : 0), inside);
        }
      }
      {
        const int step_b = (k_first) / 8 + threadIdx.x % 8;
        const int row = threadIdx.x / 8;
        const int n = tile_n * 32 + row;
        const bool inside = n < 256 && step_b * 8 < k_end;
        tgc_copy_async16(shared_b + slot * 4608 + row * 144 + ((threadIdx.x % 8) * 8) * 2,
                         p.in1 + (inside ? n * 384 + step_b * 8 : 0), inside);
      }
    }
    tgc_copy_commit();
  };
  auto put = [&](int k_first, int slot) {
    if (k_first >= k_end) return;
  };

  const char* const matrix_a = shared_a + (warp_m + lane % 16) * 144 + lane / 16 * 16;
  const char* const matrix_b = shared_b + (warp_n + lane / 16 * 8 + lane % 8) * 144 + lane / 8 % 2 * 16;
  auto read = [&](int target, int slot, int step) {
    tgc_ldmatrix_x4(a[target][0], matrix_a + slot * 9216 + step * 32);
    unsigned two[4];
    tgc_ldmatrix_x4(two, matrix_b + slot * 4608 + step * 32);
#pragma unroll
    for (int q = 0; q < 4; q++) b[target][q / 2][q % 2] = two[q];
  };

#pragma unroll 1
  for (int slot = 0; slot < 3; slot++) {
    fetch(k_begin + slot * 64, slot);
    put(k_begin + slot * 64, slot);
  }
  int slot = 0, free_slot = 3;
#pragma unroll 1
  for (int k_first = k_begin; k_first < k_end; k_first += 64) {
    tgc_copy_wait<4 - 2>();
    __syncthreads();  // the slot is full, and no warp reads the one before it any more
    const int k_next = k_first + 3 * 64;
    fetch(k_next, free_slot);
    read(0, slot, 0);
#pragma unroll
    for (int step = 0; step < 4; step++) {
      if (step + 1 < 4) read((step + 1) % 2, slot, step + 1);
#pragma unroll
      for (int j = 0; j < 2; j++) tgc_mma_bf16(sum[0][j], a[step % 2][0], b[step % 2][j]);
    }
    put(k_next, free_slot);
    slot = slot + 1 < 4 ? slot + 1 : 0;
    free_slot = free_slot + 1 < 4 ? free_slot + 1 : 0;
  }
  tgc_copy_wait<0>();
  __syncthreads();
  // A warp's 16 x columns sums in shared memory. Groups of 8 columns are exchanged by row, so that rows
  // meet different banks, and the halves of the last four groups, so that a row's strips do.
  float* const staged = reinterpret_cast<float*>(smem) + warp * 256;
#pragma unroll 1
  for (int part = 0; part < 1; part++) {
#pragma unroll
    for (int i = 0; i < 1; i++)
#pragma unroll
      for (int c = 0; c < 1; c++) {
        if (part != i + c) continue;  // sums are registers: their indices are constants
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
          for (int half = 0; half < 2; half++) {
            tgc_vector<float, 2> pair;
            pair.at[0] = sum[i][c * 2 + j][half * 2];
            pair.at[1] = sum[i][c * 2 + j][half * 2 + 1];
            const int at = (j ^ lane / 4 % 2) * 8 + lane % 4 * 2;
            *reinterpret_cast<tgc_vector<float, 2>*>(
                staged + (half * 8 + lane / 4) * 16 + (at ^ at / 32 * 4)) = pair;
          }
      }
    __syncwarp();
    const int e = lane;
    const int row = e / (2), column = e % 2;
    const int m = tile_m * 64 + warp_m + part * 16 + row;
    const int first = tile_n * 32 + warp_n;
    const int strip = first / 8 + column;
    {
      float totals[8];
#pragma unroll
      for (int v = 0; v < 8; v += 4) {
        const int at = column * 8 + v ^ row % 2 * 8;
        const tgc_vector<float, 4> several =
            *reinterpret_cast<const tgc_vector<float, 4>*>(
                staged + row * 16 + (at ^ at / 32 * 4));
#pragma unroll
        for (int q = 0; q < 4; q++) totals[v + q] = several.at[q];
      }
      const tgc_vector<tgc_bfloat16, 8> in2x8 = tgc_load_vector<8>(p.in2, strip * 8);
      float out0x8[8];
#pragma unroll
      for (int v = 0; v < 8; v++) {
        const float total = totals[v];
        const float rounded0 = tgc_cast<tgc_bfloat16>(total);
        const float in2 = tgc_element(in2x8, v);
        const float add0 = tgc_cast<tgc_bfloat16>(rounded0 + in2);
        const float maximum0 = tgc_max(add0, 0.0f);
        out0x8[v] = maximum0;
      }
      tgc_store_vector(p.out0, m * 256 + strip * 8, tgc_rounded<tgc_bfloat16>(out0x8));
    }
    __syncwarp();
  }
}
