// transposing map over 73728 elements, 2 x 16 x 64 a block: contiguous.
// Stores contiguous (128, 3, 3, 64) bfloat16.
// Grid 64 x 256 threads, 294912 bytes moved at least.
TGC_STAGE(map_contiguous_b2f3bd40b0,
  tgc_bfloat16* out0;
  const tgc_bfloat16* in0;
) {
  tgc_bfloat16* const tile0 = reinterpret_cast<tgc_bfloat16*>(smem);
  tgc_vector<tgc_bfloat16, 8> tile0_held;
  {
    const int item = threadIdx.x;
    const int plane = virtual_block * 2 + item / 72;
    const int vector = item % 72;
    if (item < 144) {
      tile0_held = tgc_load_vector<8>(p.in0, plane * 576 + vector * 8);
    }
  }
  {
    const int item = threadIdx.x;
    if (item < 144) {
#pragma unroll
      for (int v = 0; v < 8; v++) {
        const int element = item * 8 + v;
        const int start = element / 9 * 16 + element % 9;
        tile0[start ^ start / 128 % 8 * 8] = tile0_held.at[v];
      }
    }
  }
  __syncthreads();
  {
    const int item = threadIdx.x;
    const int plane = virtual_block * 2 + item / 128;
    const int along_in = item / 8 % 16;
    const int vector = item % 8;
    const int start = item / 128 * 1024 + item % 8 * 128 + item / 8 % 16;
    const int column = item % 8;
    if (along_in < 9) {
      float out0x8[8];
#pragma unroll
      for (int v = 0; v < 8; v++) {
        const float crossed0 = tgc_to_compute(tile0[(start + v * 16) ^ column * 8]);
        const float contiguous0 = crossed0;
        out0x8[v] = contiguous0;
      }
      tgc_store_vector(p.out0, plane * 576 + along_in * 64 + vector * 8, tgc_rounded<tgc_bfloat16>(out0x8));
    }
  }
}

// transposing map over 2097152 elements, 64 x 64 a block: contiguous.
// Stores contiguous (64, 16, 16, 128) bfloat16.
// Grid 512 x 256 threads, 8388608 bytes moved at least.
TGC_STAGE(map_contiguous_5e952ab017,
  tgc_bfloat16* out0;
  const tgc_bfloat16* in0;
) {
  tgc_bfloat16* const tile0 = reinterpret_cast<tgc_bfloat16*>(smem);
  tgc_vector<tgc_bfloat16, 8> tile0_held[2];
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const int item = k * 256 + threadIdx.x;
    const int plane = virtual_block / 8;
    const int vector = virtual_block / 2 % 4 * 8 + item % 8;
    const int along_out = virtual_block % 2 * 64 + item / 8;
    tile0_held[k] = tgc_load_vector<8>(p.in0, plane * 32768 + along_out * 256 + vector * 8);
  }
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const int item = k * 256 + threadIdx.x;
    const int start = item * 8;
    *reinterpret_cast<tgc_vector<tgc_bfloat16, 8>*>(tile0 + (start ^ start / 512 % 8 * 8)) = tile0_held[k];
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const int item = k * 256 + threadIdx.x;
    const int plane = virtual_block / 8;
    const int along_in = virtual_block / 2 % 4 * 64 + item / 8;
    const int vector = virtual_block % 2 * 8 + item % 8;
    const int start = item % 8 * 512 + item / 8;
    const int column = item % 8;
    float out0x8[8];
#pragma unroll
    for (int v = 0; v < 8; v++) {
      const float crossed0 = tgc_to_compute(tile0[(start ^ column * 8) + v * 64]);
      const float contiguous0 = crossed0;
      out0x8[v] = contiguous0;
    }
    tgc_store_vector(p.out0, plane * 32768 + along_in * 128 + vector * 8, tgc_rounded<tgc_bfloat16>(out0x8));
  }
}

// 2 independent stages in one launch of 576 x 256 threads.
TGC_STAGE(pack_4a5f864f6f,
  map_contiguous_b2f3bd40b0_params stage0;
  map_contiguous_5e952ab017_params stage1;
) {
  if (virtual_block < 64) map_contiguous_b2f3bd40b0_stage(virtual_block, p.stage0, smem);
  else map_contiguous_5e952ab017_stage(virtual_block - 64, p.stage1, smem);
}

// transposing map over 4194304 elements, 64 x 64 a block: contiguous.
// Stores contiguous (64, 32, 32, 64) bfloat16.
// Grid 1024 x 256 threads, 16777216 bytes moved at least.
TGC_STAGE(map_contiguous_24b2b70b5f,
  tgc_bfloat16* out0;
  const tgc_bfloat16* in0;
) {
  tgc_bfloat16* const tile0 = reinterpret_cast<tgc_bfloat16*>(smem);
  tgc_vector<tgc_bfloat16, 8> tile0_held[2];
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const int item = k * 256 + threadIdx.x;
    const int plane = virtual_block / 16;
    const int vector = virtual_block % 16 * 8 + item % 8;
    const int along_out = item / 8;
    tile0_held[k] = tgc_load_vector<8>(p.in0, plane * 65536 + along_out * 1024 + vector * 8);
  }
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const int item = k * 256 + threadIdx.x;
    const int start = item * 8;
    *reinterpret_cast<tgc_vector<tgc_bfloat16, 8>*>(tile0 + (start ^ start / 512 % 8 * 8)) = tile0_held[k];
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const int item = k * 256 + threadIdx.x;
    const int plane = virtual_block / 16;
    const int along_in = virtual_block % 16 * 64 + item / 8;
    const int vector = item % 8;
    const int start = item % 8 * 512 + item / 8;
    const int column = item % 8;
    float out0x8[8];
#pragma unroll
    for (int v = 0; v < 8; v++) {
      const float crossed0 = tgc_to_compute(tile0[(start ^ column * 8) + v * 64]);
      const float contiguous0 = crossed0;
      out0x8[v] = contiguous0;
    }
    tgc_store_vector(p.out0, plane * 65536 + along_in * 64 + vector * 8, tgc_rounded<tgc_bfloat16>(out0x8));
  }
}

// contract 1 x 128 x 16384 x 576 by wgmma, tiles of 128 x 128 x 64, split-K 1, 2415919104 FLOPs: matmul.
// Stores matmul (64, 128, 16, 16) bfloat16.
// Grid 128 x 256 threads, 12730368 bytes moved at least.
TGC_STAGE(contract_matmul_ddc02d3363,
  tgc_tensor_map map_in0;
  tgc_tensor_map map_in1;
  tgc_bfloat16* out0;
  const tgc_bfloat16* in0;
  const tgc_bfloat16* in1;
) {
  char* const shared_a = smem;
  char* const shared_b = smem + 6 * 16384;
  unsigned long long* const full = reinterpret_cast<unsigned long long*>(smem + 229376);
  unsigned long long* const empty = full + 6;
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < 6; slot++) {
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
      tgc_tma_prefetch(&p.map_in0);
      tgc_tma_prefetch(&p.map_in1);
      int slot = 0;
      unsigned parity = 1;
#pragma unroll 1
      for (int block = virtual_block; block < 128; block += 128) {
        const int tile_index = block % 128;
        const int batch = 0;
        const int k_slice = block / 128;
        const int band = tile_index / 128;
        const int band_rows = 1 - band < 1 ? 1 - band : 1;
        const int tile_m = band + tile_index % 128 % band_rows;
        const int tile_n = tile_index % 128 / band_rows;
        const int k_begin = k_slice * 576;
        const int k_end = k_begin + 576 < 576 ? k_begin + 576 : 576;
#pragma unroll 1
        for (int k_first = k_begin; k_first < k_end; k_first += 64) {
          tgc_barrier_wait(empty + slot, parity);
          if (producer == 0) tgc_barrier_expect(full + slot, 32768);
          if (producer == 0) {
            const int at[2] = {k_first, tile_m * 128};
            tgc_tma_load(shared_a + slot * 16384, &p.map_in0, full + slot, at);
          }
          if (producer == 1) {
            const int pixel = tile_n * 128, column = k_first, tap = column / 64;
            const int at[4] = {column % 64, pixel % 16 * 2 - 1,
                               pixel / 16 % 16 * 2 - 1, pixel / 256};
            const int taps[2] = {tap % 3, tap / 3};
            tgc_tma_load_pixels(shared_b + slot * 16384, &p.map_in1, full + slot,
                                at, taps);
          }
          slot++;
          if (slot == 6) {
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
      const int k_slice = block / 128;
      const int k_begin = k_slice * 576;
      const int k_end = k_begin + 576 < 576 ? k_begin + 576 : 576;
      return (k_end - k_begin + 64 - 1) / 64;
    };
    // The second warpgroup begins with the block's second tile, and lets the first one multiply.
    if (group == 1) {
      turn = turns(virtual_block);
      tgc_named_barrier_arrive(1, 256);
    }
#pragma unroll 1
    for (int block = virtual_block + group * 128; block < 128; block += 256) {
      const int tile_index = block % 128;
      const int batch = 0;
      const int k_slice = block / 128;
      const int band = tile_index / 128;
      const int band_rows = 1 - band < 1 ? 1 - band : 1;
      const int tile_m = band + tile_index % 128 % band_rows;
      const int tile_n = tile_index % 128 / band_rows;
      const int k_begin = k_slice * 576;
      const int k_end = k_begin + 576 < 576 ? k_begin + 576 : 576;
      float sum[2][64];
      int slot = turn % 6;
      unsigned parity = turn / 6 % 2;
      tgc_named_barrier(1 + group, 256);  // its turn to multiply
#pragma unroll 1
      for (int k_first = k_begin; k_first < k_end; k_first += 64) {
        tgc_barrier_wait(full + slot, parity);
        tgc_wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; step++)
#pragma unroll
          for (int i = 0; i < 2; i++)
            tgc_wgmma_bf16<128, false, false>(
                sum[i], matrix_a + (slot * 16384 + i * 8192 + step * 32) / 16,
                matrix_b + (slot * 16384 + step * 32) / 16, step > 0 || k_first > k_begin);
        tgc_wgmma_commit();
        tgc_wgmma_wait<1>();
        if (k_first > k_begin && lane == 0)
          tgc_barrier_arrive(empty + (slot > 0 ? slot : 6) - 1);
        turn++;
        slot++;
        if (slot == 6) {
          slot = 0;
          parity ^= 1;
        }
      }
      tgc_named_barrier_arrive(2 - group, 256);
      tgc_wgmma_wait<0>();
      if (lane == 0) tgc_barrier_arrive(empty + (slot > 0 ? slot : 6) - 1);
      turn += turns(block + 128);
      // A warp's 16 x columns sums in shared memory. Groups of 8 columns are exchanged by row, so that rows
      // meet different banks, and the halves of the last four groups, so that a row's strips do.
      float* const staged = reinterpret_cast<float*>(smem + 196608) + warp * 1024;
#pragma unroll 4
      for (int part = 0; part < 4; part++) {
#pragma unroll
        for (int i = 0; i < 2; i++)
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
            float out0x8[8];
#pragma unroll
            for (int v = 0; v < 8; v++) {
              const float total = totals[v];
              const float rounded0 = tgc_cast<tgc_bfloat16>(total);
              out0x8[v] = total;
            }
            tgc_store_vector(p.out0, strip / 32 * 32768 + m * 256 + strip % 32 * 8,
                tgc_rounded<tgc_bfloat16>(out0x8));
          }
        }
        __syncwarp();
      }
    }
  }
}

// contract 1 x 128 x 576 x 16384 by wgmma, tiles of 128 x 64 x 64, split-K 14, 2415919104 FLOPs: matmul.
// Stores matmul (128, 64, 3, 3) bfloat16.
// Grid 126 x 256 threads, 16711680 bytes moved at least.
TGC_STAGE(contract_matmul_slices_a2fd601fc8,
  tgc_tensor_map map_in0;
  tgc_tensor_map map_in1;
  float* partial0;
  const tgc_bfloat16* in0;
  const tgc_bfloat16* in1;
) {
  char* const shared_a = smem;
  char* const shared_b = smem + 6 * 16384;
  unsigned long long* const full = reinterpret_cast<unsigned long long*>(smem + 180224);
  unsigned long long* const empty = full + 6;
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < 6; slot++) {
      tgc_barrier_init(full + slot, 1);
      tgc_barrier_init(empty + slot, 4);
    }
    tgc_barrier_fence();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    tgc_registers_give<40>();
    const int producer = threadIdx.x / 32;  // of the boxes with this number modulo all producers
    if (threadIdx.x % 32 == 0 && producer < 3) {
      tgc_tma_prefetch(&p.map_in0);
      tgc_tma_prefetch(&p.map_in1);
      int slot = 0;
      unsigned parity = 1;
#pragma unroll 1
      for (int block = virtual_block; block < 126; block += 126) {
        const int tile_index = block % 9;
        const int batch = 0;
        const int k_slice = block / 9;
        const int band = tile_index / 9;
        const int band_rows = 1 - band < 1 ? 1 - band : 1;
        const int tile_m = band + tile_index % 9 % band_rows;
        const int tile_n = tile_index % 9 / band_rows;
        const int k_begin = k_slice * 1216;
        const int k_end = k_begin + 1216 < 16384 ? k_begin + 1216 : 16384;
#pragma unroll 1
        for (int k_first = k_begin; k_first < k_end; k_first += 64) {
          tgc_barrier_wait(empty + slot, parity);
          if (producer == 0) tgc_barrier_expect(full + slot, 24576);
#pragma unroll
          for (int box = 0; box < 2; box++) {
            if (producer == box % 3) {
              const int at[2] = {tile_m * 128 + box * 64, k_first};
              tgc_tma_load(shared_a + slot * 16384 + box * 8192, &p.map_in0, full + slot, at);
            }
          }
          if (producer == 2) {
            const int pixel = k_first, column = tile_n * 64, tap = column / 64;
            const int at[4] = {column % 64, pixel % 16 * 2 - 1,
                               pixel / 16 % 16 * 2 - 1, pixel / 256};
            const int taps[2] = {tap % 3, tap / 3};
            tgc_tma_load_pixels(shared_b + slot * 8192, &p.map_in1, full + slot,
                                at, taps);
          }
          slot++;
          if (slot == 6) {
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
      const int k_slice = block / 9;
      const int k_begin = k_slice * 1216;
      const int k_end = k_begin + 1216 < 16384 ? k_begin + 1216 : 16384;
      return (k_end - k_begin + 64 - 1) / 64;
    };
    // The second warpgroup begins with the block's second tile, and lets the first one multiply.
    if (group == 1) {
      turn = turns(virtual_block);
      tgc_named_barrier_arrive(1, 256);
    }
#pragma unroll 1
    for (int block = virtual_block + group * 126; block < 126; block += 252) {
      const int tile_index = block % 9;
      const int batch = 0;
      const int k_slice = block / 9;
      const int band = tile_index / 9;
      const int band_rows = 1 - band < 1 ? 1 - band : 1;
      const int tile_m = band + tile_index % 9 % band_rows;
      const int tile_n = tile_index % 9 / band_rows;
      const int k_begin = k_slice * 1216;
      const int k_end = k_begin + 1216 < 16384 ? k_begin + 1216 : 16384;
      float sum[2][32];
      int slot = turn % 6;
      unsigned parity = turn / 6 % 2;
      tgc_named_barrier(1 + group, 256);  // its turn to multiply
#pragma unroll 1
      for (int k_first = k_begin; k_first < k_end; k_first += 64) {
        tgc_barrier_wait(full + slot, parity);
        tgc_wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; step++)
#pragma unroll
          for (int i = 0; i < 2; i++)
            tgc_wgmma_bf16<64, true, true>(
                sum[i], matrix_a + (slot * 16384 + i * 8192 + step * 2048) / 16,
                matrix_b + (slot * 8192 + step * 2048) / 16, step > 0 || k_first > k_begin);
        tgc_wgmma_commit();
        tgc_wgmma_wait<1>();
        if (k_first > k_begin && lane == 0)
          tgc_barrier_arrive(empty + (slot > 0 ? slot : 6) - 1);
        turn++;
        slot++;
        if (slot == 6) {
          slot = 0;
          parity ^= 1;
        }
      }
      tgc_named_barrier_arrive(2 - group, 256);
      tgc_wgmma_wait<0>();
      if (lane == 0) tgc_barrier_arrive(empty + (slot > 0 ? slot : 6) - 1);
      turn += turns(block + 126);
      // A warp's 16 x columns sums in shared memory. Groups of 8 columns are exchanged by row, so that rows
      // meet different banks, and the halves of the last four groups, so that a row's strips do.
      float* const staged = reinterpret_cast<float*>(smem + 147456) + warp * 1024;
#pragma unroll 2
      for (int part = 0; part < 2; part++) {
#pragma unroll
        for (int i = 0; i < 2; i++)
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
        __syncwarp();
#pragma unroll 4
        for (int turn = 0; turn < 32; turn++) {
          const int e = turn * 32 + lane;
          const int row = e / (64), column = e % 64;
          const int m = tile_m * 128 + warp_m + part * 64 + row;
          const int first = tile_n * 64 + warp_n;
          const int strip = first + column;
          {
            float totals[1];
            {
              const int at = column ^ row % 8 * 8;
              const tgc_vector<float, 1> several =
                  *reinterpret_cast<const tgc_vector<float, 1>*>(
                      staged + row * 64 + (at ^ at / 32 * 4));
              totals[0] = several.at[0];
            }
            const float total = totals[0];
            tgc_store(p.partial0, k_slice * 73728LL + m * 576 + strip % 64 * 9 + strip / 64, total);
          }
        }
        __syncwarp();
      }
    }
  }
}

// Second stage, 73728 sums of 14 slices: matmul.
// Stores matmul (128, 64, 3, 3) bfloat16.
// Grid 288 x 256 threads, 4276224 bytes moved at least.
TGC_STAGE(contract_matmul_join_830d1ae684,
  float* partial0;
  tgc_bfloat16* out0;
) {
  const int result = threadIdx.x % 256, k_group = threadIdx.x / 256;
  const int output = virtual_block * 256 + result;
  float sum = 0.0f;
  if (output < 73728) {
#pragma unroll 16
    for (int turn = 0; turn < 14; turn++) {
      const int k_slice = turn + k_group;
      if (k_slice < 14) sum = (float)(sum + tgc_load(p.partial0, k_slice * 73728LL + output));
    }
  }
  if (k_group == 0 && output < 73728) {
    float total = sum;
    const float rounded0 = tgc_cast<tgc_bfloat16>(total);
    tgc_store(p.out0, output, total);
  }
}
