// contract 1 x 64 x 4224 x 4096 by wgmma, tiles of 64 x 64 x 64, split-K 2 in a cluster, 2214592512 FLOPs:
//   matmul add maximum.
// Stores maximum (64, 4224) bfloat16.
// Grid 132 x 256 threads, 35676416 bytes moved at least.
TGC_STAGE(contract_matmul_add_maximum_2a4cbc1ba5,
  tgc_tensor_map map_in1;
  tgc_tensor_map map_in2;
  const tgc_bfloat16* in0;
  tgc_bfloat16* out0;
  const tgc_bfloat16* in1;
  const tgc_bfloat16* in2;
) {
  char* const shared_a = smem;
  char* const shared_b = smem + 8 * 8192;
  unsigned long long* const full = reinterpret_cast<unsigned long long*>(smem + 163840);
  unsigned long long* const empty = full + 8;
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < 8; slot++) {
      tgc_barrier_init(full + slot, 1);
      tgc_barrier_init(empty + slot, 4);
    }
    tgc_barrier_fence();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    tgc_registers_give<40>();
    const int producer = threadIdx.x / 32;  // of the boxes with this number modulo all producers
    if (threadIdx.x % 32 == 0 && producer < 2) {
      tgc_tma_prefetch(&p.map_in1);
      tgc_tma_prefetch(&p.map_in2);
      int slot = 0;
      unsigned parity = 1;
#pragma unroll 1
      for (int block = virtual_block; block < 132; block += 132) {
        const int unit = block / 2;  // the tile, of those of all batches
        const int tile_index = unit % 66;
        const int batch = 0;
        const int k_slice = unit / 66;
        const int band = tile_index / 66;
        const int band_rows = 1 - band < 1 ? 1 - band : 1;
        const int tile_m = band + tile_index % 66 % band_rows;
        const int tile_n = tile_index % 66 / band_rows;
        const int k_begin = block % 2 * 2048;
        const int k_end = k_begin + 2048 < 4096 ? k_begin + 2048 : 4096;
#pragma unroll 1
        for (int k_first = k_begin; k_first < k_end; k_first += 64) {
          tgc_barrier_wait(empty + slot, parity);
          if (producer == 0) tgc_barrier_expect(full + slot, 16384);
          if (producer == 0) {
            const int at[2] = {k_first, tile_m * 64};
            tgc_tma_load(shared_a + slot * 8192, &p.map_in1, full + slot, at);
          }
          if (producer == 1) {
            const int at[2] = {k_first, tile_n * 64};
            tgc_tma_load(shared_b + slot * 8192, &p.map_in2, full + slot, at);
          }
          slot++;
          if (slot == 8) {
            slot = 0;
            parity ^= 1;
          }
        }
      }
    }
  } else {
    tgc_registers_take<232>();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 - 4, group = threadIdx.x / 128 - 1;
    const int group_m = 0, group_n = 0;
    const int warp_m = group_m + warp % 4 * 16, warp_n = group_n;
    const unsigned long long matrix_a =
        tgc_wgmma_descriptor(shared_a + group_m / 64 * 8192, 8192, 1024, 8);
    const unsigned long long matrix_b =
        tgc_wgmma_descriptor(shared_b + group_n / 64 * 8192, 8192, 1024, 8);
    int turn = 0;  // of the ring
    // Turns of the ring that a tile of outputs takes.
    auto turns = [&](int block) {
      const int k_slice = block / 66;
      const int k_begin = k_slice * 2048;
      const int k_end = k_begin + 2048 < 4096 ? k_begin + 2048 : 4096;
      return (k_end - k_begin + 64 - 1) / 64;
    };
    // The second warpgroup begins with the block's second tile, and lets the first one multiply.
    if (group == 1) {
      turn = turns(virtual_block);
      tgc_named_barrier_arrive(1, 256);
    }
#pragma unroll 1
    for (int block = virtual_block + group * 132; block < 132; block += 264) {
      const int unit = block / 2;  // the tile, of those of all batches
      const int tile_index = unit % 66;
      const int batch = 0;
      const int k_slice = unit / 66;
      const int band = tile_index / 66;
      const int band_rows = 1 - band < 1 ? 1 - band : 1;
      const int tile_m = band + tile_index % 66 % band_rows;
      const int tile_n = tile_index % 66 / band_rows;
      const int k_begin = block % 2 * 2048;
      const int k_end = k_begin + 2048 < 4096 ? k_begin + 2048 : 4096;
      float sum[1][32];
      int slot = turn % 8;
      unsigned parity = turn / 8 % 2;
      tgc_named_barrier(1 + group, 256);  // its turn to multiply
#pragma unroll 1
      for (int k_first = k_begin; k_first < k_end; k_first += 64) {
        tgc_barrier_wait(full + slot, parity);
        tgc_wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; step++)
          tgc_wgmma_bf16<64, false, false>(
              sum[0], matrix_a + (slot * 8192 + step * 32) / 16,
              matrix_b + (slot * 8192 + step * 32) / 16, step > 0 || k_first > k_begin);
        tgc_wgmma_commit();
        tgc_wgmma_wait<1>();
        if (k_first > k_begin && lane == 0)
          tgc_barrier_arrive(empty + (slot > 0 ? slot : 8) - 1);
        turn++;
        slot++;
        if (slot == 8) {
          slot = 0;
          parity ^= 1;
        }
      }
      tgc_named_barrier_arrive(2 - group, 256);
      tgc_wgmma_wait<0>();
      if (lane == 0) tgc_barrier_arrive(empty + (slot > 0 ? slot : 8) - 1);
      turn += turns(block + 132);
      // A warp's 16 x columns sums in shared memory. Groups of 8 columns are exchanged by row, so that rows
      // meet different banks, and the halves of the last four groups, so that a row's strips do.
      float* const staged = reinterpret_cast<float*>(smem + 131072) + warp * 1024;
#pragma unroll 1
      for (int part = 0; part < 1; part++) {
#pragma unroll
        for (int i = 0; i < 1; i++)
#pragma unroll
          for (int c = 0; c < 1; c++) {
            if (part != i + c) continue;  // sums are registers: their indices are constants
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
        tgc_cluster_sync();
#pragma unroll 4
        for (int turn = tgc_cluster_rank(); turn < 4; turn += 2) {
          const int e = turn * 32 + lane;
          const int row = e / (8), column = e % 8;
          const int m = tile_m * 64 + warp_m + part * 64 + row;
          const int first = tile_n * 64 + warp_n;
          const int strip = first / 8 + column;
          {
            float totals[8];
#pragma unroll
            for (int v = 0; v < 8; v += 4) {
              const int at = column * 8 + v ^ row % 8 * 8;
              const float* const own = staged + row * 64 + (at ^ at / 32 * 4);
#pragma unroll
              for (int rank = 0; rank < 2; rank++) {  // in the order of k
                const tgc_vector<float, 4> several = tgc_cluster_load<4>(own, rank);
#pragma unroll
                for (int q = 0; q < 4; q++)
                  totals[v + q] = rank > 0 ? totals[v + q] + several.at[q] : several.at[q];
              }
            }
            const tgc_vector<tgc_bfloat16, 8> in0x8 = tgc_load_vector<8>(p.in0, strip * 8);
            float out0x8[8];
#pragma unroll
            for (int v = 0; v < 8; v++) {
              const float total = totals[v];
              const float rounded0 = tgc_cast<tgc_bfloat16>(total);
              const float in0 = tgc_element(in0x8, v);
              const float add0 = tgc_cast<tgc_bfloat16>(rounded0 + in0);
              const float maximum0 = tgc_max(add0, 0.0f);
              out0x8[v] = maximum0;
            }
            tgc_store_vector(p.out0, m * 4224 + strip * 8, tgc_rounded<tgc_bfloat16>(out0x8));
          }
        }
        tgc_cluster_sync();
      }
    }
  }
}
