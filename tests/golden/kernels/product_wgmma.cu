// contract 1 x 1536 x 1024 x 512 by wgmma, tiles of 128 x 128 x 64, split-K 1, 1610612736 FLOPs: matmul add
//   maximum.
// Stores maximum (1536, 1024) bfloat16.
// Grid 96 x 256 threads, 5769216 bytes moved at least.
TGC_STAGE(contract_matmul_add_maximum_d8580367c8,
  const tgc_bfloat16* in0;
  const tgc_bfloat16* in1;
  const tgc_bfloat16* in2;
  tgc_bfloat16* out0;
) {
  char* const shared_a = smem;
  char* const shared_b = smem + 4 * 16384;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = threadIdx.x / 128;
  const int group_m = group * 64, group_n = 0;
  const int warp_m = group_m + warp % 4 * 16, warp_n = group_n;
  // The 64 rows of A and the columns of B that the warpgroup multiplies first.
  const unsigned long long matrix_a =
      tgc_wgmma_descriptor(shared_a + group_m / 64 * 8192, 8192, 1024, 8);
  const unsigned long long matrix_b =
      tgc_wgmma_descriptor(shared_b + group_n / 64 * 8192, 8192, 1024, 8);

  auto begin = [&](int block) {  // the first copies for a tile of outputs
    const int tile_index = block % 96;
    const int batch = 0;
    const int k_slice = block / 96;
    const int band = tile_index / 64 * 8;
    const int band_rows = 12 - band < 8 ? 12 - band : 8;
    const int tile_m = band + tile_index % 64 % band_rows;
    const int tile_n = tile_index % 64 / band_rows;
    const int k_begin = k_slice * 512;
    const int k_end = k_begin + 512 < 512 ? k_begin + 512 : 512;
    auto fetch = [&](int k_first, int slot) {
      if (k_first < k_end) {
        {
          const int step_a = (k_first) / 8 + threadIdx.x % 8;
#pragma unroll
          for (int i = 0; i < 4; i++) {
            const int row = i * 32 + threadIdx.x / 8;
            const int m = tile_m * 128 + row;
            const bool inside = m < 1536 && step_a * 8 < k_end;
            tgc_copy_async16(shared_a + slot * 16384 + row * 128 + ((((threadIdx.x % 8) * 8) / 8 % 8) ^ row %
                8) * 16 + ((threadIdx.x % 8) * 8) % 8 * 2,
                             p.in0 + (inside ? m * 512 + step_a * 8 : 0), inside);
          }
        }
        {
          const int step_b = (k_first) / 8 + threadIdx.x % 8;
#pragma unroll
          for (int i = 0; i < 4; i++) {
            const int row = i * 32 + threadIdx.x / 8;
            const int n = tile_n * 128 + row;
            const bool inside = n < 1024 && step_b * 8 < k_end;
            tgc_copy_async16(shared_b + slot * 16384 + row * 128 + ((((threadIdx.x % 8) * 8) / 8 % 8) ^ row %
                8) * 16 + ((threadIdx.x % 8) * 8) % 8 * 2,
                             p.in1 + (inside ? n * 512 + step_b * 8 : 0), inside);
          }
        }
      }
      tgc_copy_commit();
    };
    auto put = [&](int k_first, int slot) {
      if (k_first >= k_end) return;
    };
    #pragma unroll 1
    for (int slot = 0; slot < 2; slot++) {
      fetch(k_begin + slot * 64, slot);
      put(k_begin + slot * 64, slot);
    }
  };

  begin(virtual_block);
#pragma unroll 1
  for (int block = virtual_block; block < 96; block += 96) {
    const int tile_index = block % 96;
    const int batch = 0;
    const int k_slice = block / 96;
    const int band = tile_index / 64 * 8;
    const int band_rows = 12 - band < 8 ? 12 - band : 8;
    const int tile_m = band + tile_index % 64 % band_rows;
    const int tile_n = tile_index % 64 / band_rows;
    const int k_begin = k_slice * 512;
    const int k_end = k_begin + 512 < 512 ? k_begin + 512 : 512;
    auto fetch = [&](int k_first, int slot) {
      if (k_first < k_end) {
        {
          const int step_a = (k_first) / 8 + threadIdx.x % 8;
#pragma unroll
          for (int i = 0; i < 4; i++) {
            const int row = i * 32 + threadIdx.x / 8;
            const int m = tile_m * 128 + row;
            const bool inside = m < 1536 && step_a * 8 < k_end;
            tgc_copy_async16(shared_a + slot * 16384 + row * 128 + ((((threadIdx.x % 8) * 8) / 8 % 8) ^ row %
                8) * 16 + ((threadIdx.x % 8) * 8) % 8 * 2,
                             p.in0 + (inside ? m * 512 + step_a * 8 : 0), inside);
          }
        }
        {
          const int step_b = (k_first) / 8 + threadIdx.x % 8;
#pragma unroll
          for (int i = 0; i < 4; i++) {
            const int row = i * 32 + threadIdx.x / 8;
            const int n = tile_n * 128 + row;
            const bool inside = n < 1024 && step_b * 8 < k_end;
            tgc_copy_async16(shared_b + slot * 16384 + row * 128 + ((((threadIdx.x % 8) * 8) / 8 % 8) ^ row %
                8) * 16 + ((threadIdx.x % 8) * 8) % 8 * 2,
                             p.in1 + (inside ? n * 512 + step_b * 8 : 0), inside);
          }
        }
      }
      tgc_copy_commit();
    };
    auto put = [&](int k_first, int slot) {
      if (k_first >= k_end) return;
    };
    float sum[1][64] = {};
    int slot = 0, free_slot = 2;
#pragma unroll 1
    for (int k_first = k_begin; k_first < k_end; k_first += 64) {
      tgc_copy_wait<4 - 3>();
      tgc_proxy_fence();
      __syncthreads();  // the slot is full, and the products of the turn before the last are complete
      tgc_wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; step++)
        tgc_wgmma_bf16<128, false, false>(
            sum[0], matrix_a + (slot * 16384 + step * 32) / 16,
            matrix_b + (slot * 16384 + step * 32) / 16, true);
      tgc_wgmma_commit();
      const int k_next = k_first + 2 * 64;
      fetch(k_next, free_slot);
      put(k_next, free_slot);
      tgc_wgmma_wait<1>();
      slot = slot + 1 < 4 ? slot + 1 : 0;
      free_slot = free_slot + 1 < 4 ? free_slot + 1 : 0;
    }
    tgc_wgmma_wait<0>();
    __syncthreads();
    if (block + 96 < 96) begin(block + 96);
    // A warp's 16 x columns sums in shared memory. Groups of 8 columns are exchanged by row, so that rows
    // meet different banks, and the halves of the last four groups, so that a row's strips do.
    float* const staged = reinterpret_cast<float*>(smem + 131072) + warp * 1024;
#pragma unroll 2
    for (int part = 0; part < 2; part++) {
      tgc_vector<tgc_bfloat16, 8> in2x8_ahead[4];
#pragma unroll
      for (int turn = 0; turn < 4; turn++) {
        const int e = turn * 32 + lane;
        const int row = e / (8), column = e % 8;
        const int m = tile_m * 128 + warp_m + part / 2 * 64 + row;
        const int first = tile_n * 128 + warp_n + part % 2 * 64;
        const int strip = first / 8 + column;
        {
          in2x8_ahead[turn] = tgc_load_vector<8>(p.in2, strip * 8);
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
      for (int turn = 0; turn < 4; turn++) {
        const int e = turn * 32 + lane;
        const int row = e / (8), column = e % 8;
        const int m = tile_m * 128 + warp_m + part / 2 * 64 + row;
        const int first = tile_n * 128 + warp_n + part % 2 * 64;
        const int strip = first / 8 + column;
        {
          float totals[8];
#pragma unroll
          for (int v = 0; v < 8; v += 4) {
            const int at = column * 8 + v ^ row % 8 * 8;
            const tgc_vector<float, 4> several =
                *reinterpret_cast<const tgc_vector<float, 4>*>(
                    staged + row * 64 + (at ^ at / 32 * 4));
#pragma unroll
            for (int q = 0; q < 4; q++) totals[v + q] = several.at[q];
          }
          const tgc_vector<tgc_bfloat16, 8> in2x8 = in2x8_ahead[turn];
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
          tgc_store_vector(p.out0, m * 1024 + strip * 8, tgc_rounded<tgc_bfloat16>(out0x8));
        }
      }
      __syncwarp();
    }
  }
}
