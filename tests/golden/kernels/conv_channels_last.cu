// map over 36864 elements, 8 a thread: contiguous.
// Stores contiguous (64, 3, 3, 64) float16.
// Grid 18 x 256 threads, 147456 bytes moved at least.
TGC_STAGE(map_contiguous_ec2d7d2e11,
  const tgc_half* in0;
  tgc_half* out0;
) {
  const int item = virtual_block * 256 + threadIdx.x;
  if (item >= 4608) return;
  float out0x8[8];
#pragma unroll
  for (int v = 0; v < 8; v++) {
    const float in0 = tgc_load(p.in0, item / 9 * 72 + v * 9 + item % 9);
    const float contiguous0 = in0;
    out0x8[v] = contiguous0;
  }
  tgc_store_vector(p.out0, item / 72 * 576 + item % 9 * 64 + item / 9 % 8 * 8, tgc_rounded<tgc_half>(out0x8));
}

// transposing map over 524288 elements, 64 x 32 a block: contiguous.
// Stores contiguous (32, 16, 16, 64) float16.
// Grid 256 x 256 threads, 2097152 bytes moved at least.
TGC_STAGE(map_contiguous_0d4eec5772,
  tgc_half* out0;
  const tgc_half* in0;
) {
  tgc_half* const tile0 = reinterpret_cast<tgc_half*>(smem);
  tgc_vector<tgc_half, 8> tile0_held;
  {
    const int item = threadIdx.x;
    const int plane = virtual_block / 8;
    const int vector = virtual_block / 2 % 4 * 8 + item % 8;
    const int along_out = virtual_block % 2 * 32 + item / 8;
    tile0_held = tgc_load_vector<8>(p.in0, plane * 16384 + along_out * 256 + vector * 8);
  }
  {
    const int item = threadIdx.x;
    const int start = item * 8;
    *reinterpret_cast<tgc_vector<tgc_half, 8>*>(tile0 + (start ^ start / 512 % 8 * 8)) = tile0_held;
  }
  __syncthreads();
  {
    const int item = threadIdx.x;
    const int plane = virtual_block / 8;
    const int along_in = virtual_block / 2 % 4 * 64 + item / 4;
    const int vector = virtual_block % 2 * 4 + item % 4;
    const int start = item % 4 * 512 + item / 4;
    const int column = item % 4;
    float out0x8[8];
#pragma unroll
    for (int v = 0; v < 8; v++) {
      const float crossed0 = tgc_to_compute(tile0[(start ^ column * 8) + v * 64]);
      const float contiguous0 = crossed0;
      out0x8[v] = contiguous0;
    }
    tgc_store_vector(p.out0, plane * 16384 + along_in * 64 + vector * 8, tgc_rounded<tgc_half>(out0x8));
  }
}

// 2 independent stages in one launch of 274 x 256 threads.
TGC_STAGE(pack_2f49a2f45f,
  map_contiguous_ec2d7d2e11_params stage0;
  map_contiguous_0d4eec5772_params stage1;
) {
  if (virtual_block < 18) map_contiguous_ec2d7d2e11_stage(virtual_block, p.stage0, smem);
  else map_contiguous_0d4eec5772_stage(virtual_block - 18, p.stage1, smem);
}

// contract 1 x 64 x 8192 x 576 by mma, tiles of 64 x 32 x 64, split-K 1, 603979776 FLOPs: matmul.
// Stores matmul (32, 64, 16, 16) float16.
// Grid 256 x 256 threads, 2170880 bytes moved at least.
TGC_STAGE(contract_matmul_dd4d9ef390,
  const tgc_half* in0;
  const tgc_half* in1;
  tgc_half* out0;
) {
  const int tile_index = virtual_block % 256;
  const int batch = 0;
  const int k_slice = virtual_block / 256;
  const int band = tile_index / 256;
  const int band_rows = 1 - band < 1 ? 1 - band : 1;
  const int tile_m = band + tile_index % 256 % band_rows;
  const int tile_n = tile_index % 256 / band_rows;
  const int k_begin = k_slice * 576;
  const int k_end = k_begin + 576 < 576 ? k_begin + 576 : 576;
  char* const shared_a = smem;
  char* const shared_b = smem + 4 * 9216;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_m = warp / 2 * 16, warp_n = warp % 2 * 16;
  float sum[1][2][4] = {};
  unsigned a[2][1][4], b[2][2][2];
  // Where each row begins, and its mask of padding: a bit for each filter tap that is out of bounds.
  int begin_b[1];
  unsigned out_of_bounds_b[1];
  const int n = tile_n * 32 + threadIdx.x / 8;
  begin_b[0] = n * 64;
  unsigned out_of_bounds = n < 8192 ? 0u : ~0u;
  if (!(n / 16 % 16 >= 1)) out_of_bounds |= 1u;
  if (!(n / 16 % 16 < 15)) out_of_bounds |= 4u;
  if (!(n % 16 >= 1)) out_of_bounds |= 8u;
  if (!(n % 16 < 15)) out_of_bounds |= 32u;
  out_of_bounds_b[0] = out_of_bounds;
  auto fetch = [&](int k_first, int slot) {
    if (k_first < k_end) {
      {
        const int step_a = (k_first) / 8 + threadIdx.x % 8;
#pragma unroll
        for (int i = 0; i < 2; i++) {
          const int row = i * 32 + threadIdx.x / 8;
          const int m = tile_m * 64 + row;
          const bool inside = m < 64 && step_a * 8 < k_end;
          tgc_copy_async16(shared_a + slot * 9216 + row * 144 + ((threadIdx.x % 8) * 8) * 2,
                           p.in0 + (inside ? m * 576 + step_a * 8 : 0), inside);
        }
      }
      {
        const int k_tile = k_first / 64;
        const int step_b = threadIdx.x % 8;
        const tgc_half* const from_b = p.in1 + (k_tile / 3 * 1024 + k_tile % 3 * 64 + step_b * 8 - 1088);
        const unsigned taps_b = 1u << (k_tile / 3) | 1u << (k_tile % 3 + 3);
        const int row = threadIdx.x / 8;
        tgc_copy_async16(shared_b + slot * 4608 + row * 144 + ((threadIdx.x % 8) * 8) * 2,
                         from_b + begin_b[0], (out_of_bounds_b[0] & taps_b) == 0);
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
      for (int j = 0; j < 2; j++) tgc_mma_fp16(sum[0][j], a[step % 2][0], b[step % 2][j]);
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
      float out0x8[8];
#pragma unroll
      for (int v = 0; v < 8; v++) {
        const float total = totals[v];
        const float rounded0 = tgc_cast<tgc_half>(total);
        out0x8[v] = total;
      }
      tgc_store_vector(p.out0, strip / 32 * 16384 + m * 256 + strip % 32 * 8, tgc_rounded<tgc_half>(out0x8));
    }
    __syncwarp();
  }
}
