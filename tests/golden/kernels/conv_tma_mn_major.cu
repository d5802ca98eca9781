// transposing map over 2097152 elements, 64 x 64 a block: contiguous.
// Stores contiguous (64, 16, 16, 128) float32.
// Grid 512 x 256 threads, 16777216 bytes moved at least.
TGC_STAGE(map_contiguous_673f33f8bd,
  float* out0;
  const float* in0;
) {
  float* const tile0 = reinterpret_cast<float*>(smem);
  tgc_vector<float, 4> tile0_held[4];
#pragma unroll
  for (int k = 0; k < 4; k++) {
    const int item = k * 256 + threadIdx.x;
    const int plane = virtual_block / 8;
    const int vector = virtual_block / 2 % 4 * 16 + item % 16;
    const int along_out = virtual_block % 2 * 64 + item / 16;
    tile0_held[k] = tgc_load_vector<4>(p.in0, plane * 32768 + along_out * 256 + vector * 4);
  }
#pragma unroll
  for (int k = 0; k < 4; k++) {
    const int item = k * 256 + threadIdx.x;
    const int start = item * 4;
    *reinterpret_cast<tgc_vector<float, 4>*>(tile0 + (start ^ start / 256 % 8 * 4)) = tile0_held[k];
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < 4; k++) {
    const int item = k * 256 + threadIdx.x;
    const int plane = virtual_block / 8;
    const int along_in = virtual_block / 2 % 4 * 64 + item / 8 % 64;
    const int vector = virtual_block % 2 * 16 + item / 512 * 8 + item % 8;
    const int start = item / 512 * 2048 + item % 8 * 256 + item / 8 % 64;
    const int column = item % 8;
    tgc_vector<float, 4> out0x4;
#pragma unroll
    for (int v = 0; v < 4; v++) {
      const float crossed0 = tgc_to_compute(tile0[(start ^ column * 4) + v * 64]);
      const float contiguous0 = crossed0;
      out0x4.at[v] = tgc_to_storage<float>(contiguous0);
    }
    tgc_store_vector(p.out0, plane * 32768 + along_in * 128 + vector * 4, out0x4);
  }
}

// transposing map over 4194304 elements, 64 x 64 a block: contiguous.
// Stores contiguous (64, 32, 32, 64) float32.
// Grid 1024 x 256 threads, 33554432 bytes moved at least.
TGC_STAGE(map_contiguous_959d8c68df,
  float* out0;
  const float* in0;
) {
  float* const tile0 = reinterpret_cast<float*>(smem);
  tgc_vector<float, 4> tile0_held[4];
#pragma unroll
  for (int k = 0; k < 4; k++) {
    const int item = k * 256 + threadIdx.x;
    const int plane = virtual_block / 16;
    const int vector = virtual_block % 16 * 16 + item % 16;
    const int along_out = item / 16;
    tile0_held[k] = tgc_load_vector<4>(p.in0, plane * 65536 + along_out * 1024 + vector * 4);
  }
#pragma unroll
  for (int k = 0; k < 4; k++) {
    const int item = k * 256 + threadIdx.x;
    const int start = item * 4;
    *reinterpret_cast<tgc_vector<float, 4>*>(tile0 + (start ^ start / 256 % 8 * 4)) = tile0_held[k];
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < 4; k++) {
    const int item = k * 256 + threadIdx.x;
    const int plane = virtual_block / 16;
    const int along_in = virtual_block % 16 * 64 + item / 8 % 64;
    const int vector = item / 512 * 8 + item % 8;
    const int start = item / 512 * 2048 + item % 8 * 256 + item / 8 % 64;
    const int column = item % 8;
    tgc_vector<float, 4> out0x4;
#pragma unroll
    for (int v = 0; v < 4; v++) {
      const float crossed0 = tgc_to_compute(tile0[(start ^ column * 4) + v * 64]);
      const float contiguous0 = crossed0;
      out0x4.at[v] = tgc_to_storage<float>(contiguous0);
    }
    tgc_store_vector(p.out0, plane * 65536 + along_in * 64 + vector * 4, out0x4);
  }
}

// contract 1 x 128 x 576 x 16384 by wgmma tf32 MN-major, tiles of 128 x 128 x 32, split-K 26, 2415919104
//   FLOPs: matmul.
// Stores matmul (128, 64, 3, 3) float32.
// Grid 130 x 256 threads, 32833536 bytes moved at least.
TGC_STAGE(contract_matmul_slices_9e54038d9e,
  tgc_tensor_map map_in0;
  tgc_tensor_map map_in1;
  float* partial0;
  float* out0;
  const float* in0;
  const float* in1;
) {
  char* const shared_a = smem;
  char* const shared_b = smem + 6 * 16384;
  unsigned long long* const full = reinterpret_cast<unsigned long long*>(smem + 229376);
  unsigned long long* const empty = full + 6;
  unsigned long long* const ready = empty + 6;
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < 6; slot++) {
      tgc_barrier_init(full + slot, 1);
      tgc_barrier_init(empty + slot, 8);
      tgc_barrier_init(ready + slot, 4);
    }
    tgc_barrier_fence();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    tgc_registers_give<40>();
    const int producer = threadIdx.x / 32;  // of the boxes with this number modulo all producers
    if (threadIdx.x % 32 == 0 && producer < 4) {
      tgc_tma_prefetch(&p.map_in0);
      tgc_tma_prefetch(&p.map_in1);
      int slot = 0;
      unsigned parity = 1;
#pragma unroll 1
      for (int block = virtual_block; block < 130; block += 130) {
        const int tile_index = block % 5;
        const int batch = 0;
        const int k_slice = block / 5;
        const int band = tile_index / 5;
        const int band_rows = 1 - band < 1 ? 1 - band : 1;
        const int tile_m = band + tile_index % 5 % band_rows;
        const int tile_n = tile_index % 5 / band_rows;
        const int k_begin = k_slice * 640;
        const int k_end = k_begin + 640 < 16384 ? k_begin + 640 : 16384;
#pragma unroll 1
        for (int k_first = k_begin; k_first < k_end; k_first += 32) {
          tgc_barrier_wait(empty + slot, parity);
          if (producer == 0) tgc_barrier_expect(full + slot, 32768);
#pragma unroll
          for (int box = 0; box < 4; box++) {
            if (producer == box % 4) {
              const int at[2] = {tile_m * 128 + box * 32, k_first};
              tgc_tma_load(shared_a + slot * 16384 + box * 4096, &p.map_in0, full + slot, at);
            }
          }
#pragma unroll
          for (int box = 0; box < 4; box++) {
            if (producer == (box + 4) % 4) {
              const int pixel = k_first, column = tile_n * 128 + box * 32, tap = column / 64;
              const int at[4] = {column % 64, pixel % 16 * 2 - 1,
                                 pixel / 16 % 16 * 2 - 1, pixel / 256};
              const int taps[2] = {tap % 3, tap / 3};
              tgc_tma_load_pixels(shared_b + slot * 16384 + box * 4096, &p.map_in1, full + slot,
                                  at, taps);
            }
          }
          slot++;
          if (slot == 6) {
            slot = 0;
            parity ^= 1;
          }
        }
      }
    }
  } else if (threadIdx.x >= 384) {
    tgc_registers_give<72>();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    int slot = 0;
    unsigned parity = 0;
#pragma unroll 1
    for (int block = virtual_block; block < 130; block += 130) {
      const int k_slice = block / 5;
      const int k_begin = k_slice * 640;
      const int k_end = k_begin + 640 < 16384 ? k_begin + 640 : 16384;
#pragma unroll 1
      for (int k_first = k_begin; k_first < k_end; k_first += 32) {
        tgc_barrier_wait(full + slot, parity);
#pragma unroll 1
        for (int box = warp; box < 4; box += 4) {
          char* const tile = shared_b + slot * 16384 + box * 4096;
          float values[32];  // of column `lane`
#pragma unroll
          for (int k = 0; k < 32; k++)
            values[k] = *reinterpret_cast<const float*>(tile + k * 128 + (lane / 4 ^ k % 8) * 16 + lane % 4 *
                4);
          __syncwarp();  // all of the box is in registers
#pragma unroll
          for (int chunk = 0; chunk < 8; chunk++) {
            tgc_vector<float, 4> four;
#pragma unroll
            for (int i = 0; i < 4; i++)
              four.at[i] = values[chunk / 2 * 8 + i * 2 + chunk % 2];
            *reinterpret_cast<tgc_vector<float, 4>*>(tile + lane * 128 + (chunk ^ lane % 8) * 16) = four;
          }
        }
        tgc_proxy_fence();
        __syncwarp();
        if (lane == 0) tgc_barrier_arrive(ready + slot);
        slot++;
        if (slot == 6) {
          slot = 0;
          parity ^= 1;
        }
      }
    }
  } else {
    tgc_registers_take<200>();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 - 4, group = threadIdx.x / 128 - 1;
    const int group_m = group * 64, group_n = 0;
    const int warp_m = group_m + warp % 4 * 16, warp_n = group_n;
    // Where a lane's rows lane / 4 and 8 behind begin, at the first and at the last four k of eight.
    const int chunk_a = warp_m % 32 / 4 + lane / 16, k_a = lane % 4 * 2;
    const char* const column_a = shared_a + warp_m / 32 * 4096 + k_a * 128 + lane / 4 % 4 * 4;
    const int rows_a[4] = {(chunk_a ^ k_a) * 16, ((chunk_a + 2) ^ k_a) * 16,
                           128 + (chunk_a ^ (k_a + 1)) * 16,
                           128 + ((chunk_a + 2) ^ (k_a + 1)) * 16};
    const unsigned long long matrix_b =
        tgc_wgmma_descriptor(shared_b + group_n * 128, 8192, 1024, 8);
    int turn = 0;  // of the ring
#pragma unroll 1
    for (int block = virtual_block; block < 130; block += 130) {
      const int tile_index = block % 5;
      const int batch = 0;
      const int k_slice = block / 5;
      const int band = tile_index / 5;
      const int band_rows = 1 - band < 1 ? 1 - band : 1;
      const int tile_m = band + tile_index % 5 % band_rows;
      const int tile_n = tile_index % 5 / band_rows;
      const int k_begin = k_slice * 640;
      const int k_end = k_begin + 640 < 16384 ? k_begin + 640 : 16384;
      float sum[1][64];
      int slot = turn % 6;
      unsigned parity = turn / 6 % 2;
#pragma unroll 1
      for (int k_first = k_begin; k_first < k_end; k_first += 32) {
        tgc_barrier_wait(full + slot, parity);
        tgc_barrier_wait(ready + slot, parity);
        unsigned a[4][1][4];
#pragma unroll
        for (int step = 0; step < 4; step++)
#pragma unroll
          for (int q = 0; q < 4; q++)
            a[step][0][q] = *reinterpret_cast<const unsigned*>(
                column_a + slot * 16384 + step * 1024 + rows_a[q]);
        tgc_wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; step++)
          tgc_wgmma_tf32_rs<128>(sum[0], a[step][0], matrix_b + (slot * 16384 + step * 32) / 16,
                                   step > 0 || k_first > k_begin);
        tgc_wgmma_commit();
        tgc_wgmma_wait<0>();  // the registers of A are free, and the slot is
        if (lane == 0) tgc_barrier_arrive(empty + slot);
        turn++;
        slot++;
        if (slot == 6) {
          slot = 0;
          parity ^= 1;
        }
      }
      // A warp's 16 x columns sums in shared memory. Groups of 8 columns are exchanged by row, so that rows
      // meet different banks, and the halves of the last four groups, so that a row's strips do.
      float* const staged = reinterpret_cast<float*>(smem + 196608) + warp * 1024;
#pragma unroll 2
      for (int part = 0; part < 2; part++) {
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
        for (int turn = 0; turn < 32; turn++) {
          const int e = turn * 32 + lane;
          const int row = e / (64), column = e % 64;
          const int m = tile_m * 128 + warp_m + part / 2 * 64 + row;
          const int first = tile_n * 128 + warp_n + part % 2 * 64;
          const int strip = first + column;
          if (strip < 576) {
            float totals[1];
            {
              const int at = column ^ row % 8 * 8;
              const tgc_vector<float, 1> several =
                  *reinterpret_cast<const tgc_vector<float, 1>*>(
                      staged + row * 64 + (at ^ at / 32 * 4));
              totals[0] = several.at[0];
            }
            const float total = totals[0];
            tgc_store(k_slice > 0 ? p.partial0 + (k_slice - 1) * 73728LL : p.out0,
                m * 576 + strip % 64 * 9 + strip / 64, total);
          }
        }
        __syncwarp();
      }
    }
  }
}

// Second stage, 73728 sums of 26 slices: matmul.
// Stores matmul (128, 64, 3, 3) float32.
// Grid 288 x 256 threads, 7667712 bytes moved at least.
TGC_STAGE(contract_matmul_join_d7154c018c,
  float* partial0;
  float* out0;
) {
  const int result = threadIdx.x % 256, k_group = threadIdx.x / 256;
  const int output = virtual_block * 256 + result;
  float sum = 0.0f;
  if (output < 73728) {
#pragma unroll 16
    for (int turn = 0; turn < 26; turn++) {
      const int k_slice = turn + k_group;
      const float* const slice = k_slice > 0 ? p.partial0 + (k_slice - 1) * 73728LL : p.out0;
      if (k_slice < 26) sum = (float)(sum + tgc_load(slice, output));
    }
  }
  if (k_group == 0 && output < 73728) {
    float total = sum;
    tgc_store(p.out0, output, total);
  }
}
