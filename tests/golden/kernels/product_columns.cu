// contract 1 x 65536 x 64 x 576 by wgmma, tiles of 256 x 128 x 64, split-K 1, 4831838208 FLOPs: matmul where
//   sum sum.
// Stores where (65536, 64) bfloat16; sum (1, 64) float32; sum (1, 64) float32.
// Grid 132 x 256 threads, 92483840 bytes moved at least.
TGC_STAGE(contract_matmul_sum_where_b18acc5830,
  const tgc_bfloat16* in0;
  const tgc_bfloat16* in1;
  const tgc_bfloat16* in2;
  tgc_bfloat16* out0;
  const float* in3;
  float* partial0;
  float* partial1;
) {
  char* const shared_a = smem;
  char* const shared_b = smem + 4 * 32768;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = threadIdx.x / 128;
  const int group_m = group * 128, group_n = 0;
  const int warp_m = group_m + warp % 4 * 16, warp_n = group_n;
  // The 64 rows of A and the columns of B that the warpgroup multiplies first.
  const unsigned long long matrix_a =
      tgc_wgmma_descriptor(shared_a + group_m / 64 * 8192, 8192, 1024, 8);
  const unsigned long long matrix_b =
      tgc_wgmma_descriptor(shared_b + group_n / 64 * 8192, 8192, 1024, 8);

  auto begin = [&](int block) {  // the first copies for a tile of outputs
    const int tile_index = block % 256;
    const int batch = 0;
    const int k_slice = block / 256;
    const int band = tile_index / 8 * 8;
    const int band_rows = 256 - band < 8 ? 256 - band : 8;
    const int tile_m = band + tile_index % 8 % band_rows;
    const int tile_n = tile_index % 8 / band_rows;
    const int k_begin = k_slice * 576;
    const int k_end = k_begin + 576 < 576 ? k_begin + 576 : 576;
    const int step_b = (tile_n * 128) / 8 + threadIdx.x % 16;
    auto fetch = [&](int k_first, int slot) {
      if (k_first < k_end) {
        {
          const int step_a = (k_first) / 8 + threadIdx.x % 8;
#pragma unroll
          for (int i = 0; i < 8; i++) {
            const int row = i * 32 + threadIdx.x / 8;
            const int m = tile_m * 256 + row;
            const bool inside = m < 65536 && step_a * 8 < k_end;
            tgc_copy_async16(shared_a + slot * 32768 + row * 128 + ((((threadIdx.x % 8) * 8) / 8 % 8) ^ row %
                8) * 16 + ((threadIdx.x % 8) * 8) % 8 * 2,
                             p.in0 + (inside ? m * 576 + step_a * 8 : 0), inside);
          }
        }
        {
#pragma unroll
          for (int i = 0; i < 4; i++) {
            const int row = i * 16 + threadIdx.x / 16;
            const int k = k_first + row;
            const bool inside = k < k_end && step_b * 8 < 64;
            tgc_copy_async16(shared_b + slot * 16384 + row * 128 + ((threadIdx.x % 16) * 8) / 64 * 8192 +
                ((((threadIdx.x % 16) * 8) / 8 % 8) ^ row % 8) * 16 + ((threadIdx.x % 16) * 8) % 8 * 2,
                             p.in1 + (inside ? k * 64 + step_b * 8 : 0), inside);
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
  for (int block = virtual_block; block < 256; block += 132) {
    const int tile_index = block % 256;
    const int batch = 0;
    const int k_slice = block / 256;
    const int band = tile_index / 8 * 8;
    const int band_rows = 256 - band < 8 ? 256 - band : 8;
    const int tile_m = band + tile_index % 8 % band_rows;
    const int tile_n = tile_index % 8 / band_rows;
    const int k_begin = k_slice * 576;
    const int k_end = k_begin + 576 < 576 ? k_begin + 576 : 576;
    const int step_b = (tile_n * 128) / 8 + threadIdx.x % 16;
    auto fetch = [&](int k_first, int slot) {
      if (k_first < k_end) {
        {
          const int step_a = (k_first) / 8 + threadIdx.x % 8;
#pragma unroll
          for (int i = 0; i < 8; i++) {
            const int row = i * 32 + threadIdx.x / 8;
            const int m = tile_m * 256 + row;
            const bool inside = m < 65536 && step_a * 8 < k_end;
            tgc_copy_async16(shared_a + slot * 32768 + row * 128 + ((((threadIdx.x % 8) * 8) / 8 % 8) ^ row %
                8) * 16 + ((threadIdx.x % 8) * 8) % 8 * 2,
                             p.in0 + (inside ? m * 576 + step_a * 8 : 0), inside);
          }
        }
        {
#pragma unroll
          for (int i = 0; i < 4; i++) {
            const int row = i * 16 + threadIdx.x / 16;
            const int k = k_first + row;
            const bool inside = k < k_end && step_b * 8 < 64;
            tgc_copy_async16(shared_b + slot * 16384 + row * 128 + ((threadIdx.x % 16) * 8) / 64 * 8192 +
                ((((threadIdx.x % 16) * 8) / 8 % 8) ^ row % 8) * 16 + ((threadIdx.x % 16) * 8) % 8 * 2,
                             p.in1 + (inside ? k * 64 + step_b * 8 : 0), inside);
          }
        }
      }
      tgc_copy_commit();
    };
    auto put = [&](int k_first, int slot) {
      if (k_first >= k_end) return;
    };
    float sum[2][64] = {};
    int slot = 0, free_slot = 2;
#pragma unroll 1
    for (int k_first = k_begin; k_first < k_end; k_first += 64) {
      tgc_copy_wait<4 - 3>();
      tgc_proxy_fence();
      __syncthreads();  // the slot is full, and the products of the turn before the last are complete
      tgc_wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; step++)
#pragma unroll
        for (int i = 0; i < 2; i++)
          tgc_wgmma_bf16<128, false, true>(
              sum[i], matrix_a + (slot * 32768 + i * 8192 + step * 32) / 16,
              matrix_b + (slot * 16384 + step * 2048) / 16, true);
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
    if (block + 132 < 256) begin(block + 132);
    // A warp's 16 x columns sums in shared memory. Groups of 8 columns are exchanged by row, so that rows
    // meet different banks, and the halves of the last four groups, so that a row's strips do.
    float* const staged = reinterpret_cast<float*>(smem + 196608) + warp * 1024;
    float column_sum0[8];
    float column_sum1[8];
#pragma unroll 4
    for (int part = 0; part < 4; part++) {
      if (part % 2 == 0) tgc_columns_start(column_sum0, 0.0f);
      if (part % 2 == 0) tgc_columns_start(column_sum1, 0.0f);
      tgc_vector<tgc_bfloat16, 8> in2x8_ahead[4];
#pragma unroll
      for (int turn = 0; turn < 4; turn++) {
        const int e = turn * 32 + lane;
        const int row = e / (8), column = e % 8;
        const int m = tile_m * 256 + warp_m + part % 2 * 64 + row;
        const int first = tile_n * 128 + warp_n + part / 2 * 64;
        const int strip = first / 8 + column;
        if (strip < 8) {
          in2x8_ahead[turn] = tgc_load_vector<8>(p.in2, m * 64 + strip * 8);
        }
      }
#pragma unroll
      for (int i = 0; i < 2; i++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
          if (part != c * 2 + i) continue;  // sums are registers: their indices are constants
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
        const int m = tile_m * 256 + warp_m + part % 2 * 64 + row;
        const int first = tile_n * 128 + warp_n + part / 2 * 64;
        const int strip = first / 8 + column;
        if (strip < 8) {
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
          const tgc_two_vectors<float, 8> in3x8 = tgc_load_two_vectors<8>(p.in3, strip * 8);
#pragma unroll
          for (int v = 0; v < 8; v++) {
            const float total = totals[v];
            const float in2 = tgc_element(in2x8, v);
            const bool gt0 = in2 > 0.0f;
            const float rounded0 = tgc_cast<tgc_bfloat16>(total);
            const float where0 = gt0 ? rounded0 : 0.0f;
            out0x8[v] = where0;
            column_sum0[v] = tgc_sum_op()(column_sum0[v], where0);
            const float in3 = tgc_element(in3x8, v);
            const float sub0 = in2 - in3;
            const float mul0 = where0 * sub0;
            column_sum1[v] = tgc_sum_op()(column_sum1[v], mul0);
          }
          tgc_store_vector(p.out0, m * 64 + strip * 8, tgc_rounded<tgc_bfloat16>(out0x8));
        }
      }
      __syncwarp();
      // All rows of these columns are summed: lanes with the same ones join theirs, then the warps do.
      if (part % 2 == 1) {
        const int column = threadIdx.x % 128, n = tile_n * 128 + warp_n + part / 2 * 64 + column;
        const bool own = column < 64 && n < 64;
        const float column_sum0_before = own && block >= 132 ? tgc_load(p.partial0,
            (block % 132 * 2 + group_m / 128) * 64 + n) : 0.0f;
        const float column_sum1_before = own && block >= 132 ? tgc_load(p.partial1,
            (block % 132 * 2 + group_m / 128) * 64 + n) : 0.0f;
#pragma unroll
        for (int v = 0; v < 8; v++) {
          column_sum0[v] = tgc_strided_reduce<8>(column_sum0[v], tgc_sum_op());
          if (lane < 8) reinterpret_cast<float*>(staged)[lane * 8 + v] = column_sum0[v];
        }
#pragma unroll
        for (int v = 0; v < 8; v++) {
          column_sum1[v] = tgc_strided_reduce<8>(column_sum1[v], tgc_sum_op());
          if (lane < 8) reinterpret_cast<float*>(staged + 64)[lane * 8 + v] = column_sum1[v];
        }
        tgc_named_barrier(3 + group, 128);
        if (own) {
          {
            const float* const parts = staged - warp % 4 * 1024;
            float total = reinterpret_cast<const float*>(parts)[column];
#pragma unroll
            for (int other = 1; other < 4; other++)
              total = tgc_sum_op()(total, reinterpret_cast<const float*>(parts + other * 1024)[column]);
            tgc_store(p.partial0, (block % 132 * 2 + group_m / 128) * 64 + n, tgc_sum_op()(column_sum0_before,
                total));
          }
          {
            const float* const parts = staged - warp % 4 * 1024 + 64;
            float total = reinterpret_cast<const float*>(parts)[column];
#pragma unroll
            for (int other = 1; other < 4; other++)
              total = tgc_sum_op()(total, reinterpret_cast<const float*>(parts + other * 1024)[column]);
            tgc_store(p.partial1, (block % 132 * 2 + group_m / 128) * 64 + n, tgc_sum_op()(column_sum1_before,
                total));
          }
        }
        tgc_named_barrier(3 + group, 128);  // sums may be staged there again
      }
    }
  }
}

// Second stage, 64 columns of 264 parts: sum sum.
// Stores sum (1, 64) float32; sum (1, 64) float32.
// Grid 8 x 256 threads, 135680 bytes moved at least.
TGC_STAGE(column_reduce_sum_join_17ad0511bf,
  float* partial0;
  float* partial1;
  float* out0;
  float* out1;
) {
  const int across = threadIdx.x % 8;
  const int down = threadIdx.x / 8;
  const int own_column = virtual_block * 8 + across;
  const bool live = own_column < 64;
  const int column = live ? own_column : 63;
  float sum0 = 0.0f;
  float sum1 = 0.0f;
#pragma unroll 8
  for (int part = down; part < 264; part += 32) {
    sum0 = tgc_sum_op()(sum0, tgc_load(p.partial0, part * 64 + column));
    sum1 = tgc_sum_op()(sum1, tgc_load(p.partial1, part * 64 + column));
  }
  {
    float* shared = reinterpret_cast<float*>(smem);
    shared[threadIdx.x] = sum0;
    __syncthreads();
    for (int half = 16; half > 0; half /= 2) {
      if (down < half) {
        float* own = shared + threadIdx.x;
        *own = sum0 = tgc_sum_op()(sum0, own[half * 8]);
      }
      __syncthreads();
    }
  }
  {
    float* shared = reinterpret_cast<float*>(smem);
    shared[threadIdx.x] = sum1;
    __syncthreads();
    for (int half = 16; half > 0; half /= 2) {
      if (down < half) {
        float* own = shared + threadIdx.x;
        *own = sum1 = tgc_sum_op()(sum1, own[half * 8]);
      }
      __syncthreads();
    }
  }
  if (down == 0 && live) {
    tgc_store(p.out0, column, sum0);
    tgc_store(p.out1, column, sum1);
  }
}
