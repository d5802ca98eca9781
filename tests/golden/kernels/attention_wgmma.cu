// attention, forward: 192 x 256 x 256, tiles of 128 x 64, 4 slots, 1610612736 FLOPs: attention output output.
// Stores output (16, 12, 256, 64) bfloat16; output (16, 12, 256) float32.
// Grid 384 x 256 threads, 25362432 bytes moved at least.
TGC_STAGE(attention_4f7d768cc6,
  const tgc_bfloat16* in0;
  const tgc_bfloat16* in1;
  const tgc_bfloat16* in2;
  float* out0;
  tgc_bfloat16* out1;
) {
  const int tile = 1 - virtual_block % 2;
  const int batch = virtual_block / 2;
  const int query_first = tile * 128;
  const int lane = threadIdx.x % 32, row_first = threadIdx.x / 32 * 16;
  const int first_column = 0, last_column = query_first + 128 < 256 ? query_first + 128 : 256;
  char* const ring = smem + 16384;
  auto fetch_q = [&](int first, char* slot) {
    const int thread = tgc_again(threadIdx.x);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int chunk = i * 256 + thread;
      const int row = chunk / 8, step = chunk % 8;
      const int query = first + row;
      const bool inside = query < 256;
      char* const target = slot + row * 128 + ((step % 8) ^ (row % 8)) * 16;
      tgc_copy_async16(target, p.in0 + (inside ? batch * 16384 + query * 64 + step * 8 : 0), inside);
    }
  };

  auto fetch_k = [&](int first, char* slot) {
    const int thread = tgc_again(threadIdx.x);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int chunk = i * 256 + thread;
      const int row = chunk / 8, step = chunk % 8;
      const int key = first + row;
      const bool inside = key < 256;
      char* const target = slot + row * 128 + ((step % 8) ^ (row % 8)) * 16;
      tgc_copy_async16(target, p.in1 + (inside ? batch * 16384 + key * 64 + step * 8 : 0), inside);
    }
  };

  auto fetch_v = [&](int first, char* slot) {
    const int thread = tgc_again(threadIdx.x);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int chunk = i * 256 + thread;
      const int row = chunk / 8, step = chunk % 8;
      const int key = first + row;
      const bool inside = key < 256;
      char* const target = slot + row * 128 + ((step % 8) ^ (row % 8)) * 16;
      tgc_copy_async16(target, p.in2 + (inside ? batch * 16384 + key * 64 + step * 8 : 0), inside);
    }
  };
  auto fetch = [&](int first, int slot) {
    if (first < last_column) {
      fetch_k(first, ring + slot * 16384);
      fetch_v(first, ring + slot * 16384 + 8192);
    }
    tgc_copy_commit();
  };
  fetch_q(query_first, smem);
#pragma unroll 1
  for (int slot = 0; slot < 3; slot++) fetch(first_column + slot * 64, slot);
  int slot = 0, free_slot = 3;

  const int group = threadIdx.x / 128;
  const unsigned long long rows_0 =
      tgc_wgmma_descriptor(smem + group * 8192, 16384, 1024, 8);
  const unsigned long long columns_0 = tgc_wgmma_descriptor(ring, 8192, 1024, 8);
  const unsigned long long columns_1 =
      tgc_wgmma_descriptor(ring + 8192, 8192, 1024, 8);

  float value[1][8][4] = {}, largest[1][2], total[1][2] = {};
  largest[0][0] = largest[0][1] = -INFINITY;

  unsigned share[4][4];
  {
    constexpr int column_first = 0, turn = 0;
    tgc_copy_wait<4 - 2>();
    tgc_proxy_fence();
    __syncthreads();
    float score[1][8][4];
    tgc_wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; step++)
      tgc_wgmma_bf16<64>(*reinterpret_cast<float (*)[32]>(&score[0]),
                         rows_0 + (step / 4 * 16384 + step % 4 * 32) / 16,
                         columns_0 + turn + (step / 4 * 8192 + step % 4 * 32) / 16, step > 0);
    tgc_wgmma_commit();
    tgc_wgmma_wait<0>();
    if (column_first + 63 > query_first + row_first) {
#pragma unroll
      for (int j = 0; j < 8; j++)
#pragma unroll
        for (int q = 0; q < 4; q++) {
          const int query = query_first + row_first + q / 2 * 8 + lane / 4;
          const int key = column_first + j * 8 + lane % 4 * 2 + q % 2;
          bool seen = key <= query;
          if (!seen) score[0][j][q] = -INFINITY;
        }
    }
    bool grows = false;
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
      for (int q = 0; q < 4; q++) grows |= score[0][j][q] > largest[0][q / 2] + 44.3614195558365f;
    const bool moves = __any_sync(0xffffffffu, grows);
    float factor[2] = {1.0f, 1.0f};
    if (moves) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        float top = largest[0][half];
#pragma unroll
        for (int j = 0; j < 8; j++)
          top = fmaxf(top, fmaxf(score[0][j][half * 2], score[0][j][half * 2 + 1]));
        top = fmaxf(top, tgc_shuffle_xor(top, 1));
        top = fmaxf(top, tgc_shuffle_xor(top, 2));
        const float moved = (largest[0][half] - top) * 0.18033688011112042f;
        if (top != largest[0][half]) factor[half] = tgc_exp2_short(moved);
        largest[0][half] = top;
        total[0][half] *= factor[half];
      }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
      constexpr int i = 0;
      const float shift = largest[i][half] == -INFINITY ? 0.0f : largest[i][half] * 0.18033688011112042f;
#pragma unroll
      for (int j = 0; j < 8; j++)
#pragma unroll
        for (int q = half * 2; q < half * 2 + 2; q++) {
          score[i][j][q] = tgc_exp2_short(tgc_fma(score[i][j][q], 0.18033688011112042f, -shift));
          total[i][half] += score[i][j][q];
        }
    }
#pragma unroll
    for (int step = 0; step < 4; step++)
#pragma unroll
      for (int q = 0; q < 4; q++) {
        const float* const pair = score[0][2 * step + q / 2] + q % 2 * 2;
        share[step][q] = tgc_pack_bf16(pair[0], pair[1]);
      }
  }
#pragma unroll 1
  for (int column_first = 64; column_first < last_column; column_first += 64) {
    tgc_copy_wait<4 - 3>();
    tgc_proxy_fence();
    __syncthreads();  // the slot is full, and the products of the turn before the last are complete
    const int before = slot;
    slot = slot + 1 < 4 ? slot + 1 : 0;
    const int turn = slot * 1024;
    float score[1][8][4];
    tgc_wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; step++)
      tgc_wgmma_bf16<64>(*reinterpret_cast<float (*)[32]>(&score[0]),
                         rows_0 + (step / 4 * 16384 + step % 4 * 32) / 16,
                         columns_0 + turn + (step / 4 * 8192 + step % 4 * 32) / 16, step > 0);
    tgc_wgmma_commit();
#pragma unroll
    for (int step = 0; step < 4; step++)
      tgc_wgmma_bf16_rs<64, true>(*reinterpret_cast<float (*)[32]>(&value[0]), share[step],
                                columns_1 + (before * 16384 + step * 2048) / 16, true);
    tgc_wgmma_commit();
    fetch(column_first + 2 * 64, free_slot);
    free_slot = free_slot + 1 < 4 ? free_slot + 1 : 0;
    tgc_wgmma_wait<1>();
    if (column_first + 63 > query_first + row_first) {
#pragma unroll
      for (int j = 0; j < 8; j++)
#pragma unroll
        for (int q = 0; q < 4; q++) {
          const int query = query_first + row_first + q / 2 * 8 + lane / 4;
          const int key = column_first + j * 8 + lane % 4 * 2 + q % 2;
          bool seen = key <= query;
          if (!seen) score[0][j][q] = -INFINITY;
        }
    }
    bool grows = false;
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
      for (int q = 0; q < 4; q++) grows |= score[0][j][q] > largest[0][q / 2] + 44.3614195558365f;
    const bool moves = __any_sync(0xffffffffu, grows);
    float factor[2] = {1.0f, 1.0f};
    if (moves) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        float top = largest[0][half];
#pragma unroll
        for (int j = 0; j < 8; j++)
          top = fmaxf(top, fmaxf(score[0][j][half * 2], score[0][j][half * 2 + 1]));
        top = fmaxf(top, tgc_shuffle_xor(top, 1));
        top = fmaxf(top, tgc_shuffle_xor(top, 2));
        const float moved = (largest[0][half] - top) * 0.18033688011112042f;
        if (top != largest[0][half]) factor[half] = tgc_exp2_short(moved);
        largest[0][half] = top;
        total[0][half] *= factor[half];
      }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
      constexpr int i = 0;
      const float shift = largest[i][half] == -INFINITY ? 0.0f : largest[i][half] * 0.18033688011112042f;
#pragma unroll
      for (int j = 0; j < 8; j++)
#pragma unroll
        for (int q = half * 2; q < half * 2 + 2; q++) {
          score[i][j][q] = tgc_exp2_short(tgc_fma(score[i][j][q], 0.18033688011112042f, -shift));
          total[i][half] += score[i][j][q];
        }
    }
    tgc_wgmma_wait<0>();
    if (moves) {
#pragma unroll
      for (int j = 0; j < 8; j++)
#pragma unroll
        for (int q = 0; q < 4; q++) value[0][j][q] *= factor[q / 2];
    }
#pragma unroll
    for (int step = 0; step < 4; step++)
#pragma unroll
      for (int q = 0; q < 4; q++) {
        const float* const pair = score[0][2 * step + q / 2] + q % 2 * 2;
        share[step][q] = tgc_pack_bf16(pair[0], pair[1]);
      }
  }
  tgc_wgmma_fence();
#pragma unroll
  for (int step = 0; step < 4; step++)
    tgc_wgmma_bf16_rs<64, true>(*reinterpret_cast<float (*)[32]>(&value[0]), share[step],
                              columns_1 + (slot * 16384 + step * 2048) / 16, true);
  tgc_wgmma_commit();
  tgc_wgmma_wait<0>();

  tgc_copy_wait<0>();
#pragma unroll
  for (int half = 0; half < 2; half++) {
    float sum = total[0][half];
    sum += tgc_shuffle_xor(sum, 1);
    sum += tgc_shuffle_xor(sum, 2);
    const bool hidden = largest[0][half] == -INFINITY && !tgc_isnan(sum);
    const float share = hidden ? NAN : 1.0f / sum;
#pragma unroll
    for (int j = 0; j < 8; j++) {
      value[0][j][half * 2] *= share;
      value[0][j][half * 2 + 1] *= share;
    }
    const int query = query_first + row_first + half * 8 + lane / 4;
    if (lane % 4 == 0 && query < 256) {
      const float logarithm = (largest[0][half] * 0.18033688011112042f + tgc_log2(sum)) * 0.69314718f;
      tgc_store(p.out0, batch * 256 + query, hidden ? -INFINITY : logarithm);
    }
  }

  __syncthreads();
#pragma unroll
  for (int j = 0; j < 8; j++)
#pragma unroll
    for (int half = 0; half < 2; half++)
      *reinterpret_cast<unsigned*>(smem + (row_first + half * 8 + lane / 4) * 144
                                   + j * 16 + lane % 4 * 4) =
          tgc_pack_bf16(value[0][j][half * 2] * 1.0f, value[0][j][half * 2 + 1] * 1.0f);
  __syncwarp();
#pragma unroll
  for (int e = lane; e < 128; e += 32) {
    const int row = row_first + e / (8), chunk = e % 8;
    const int query = query_first + row;
    if (query < 256)
      tgc_store_vector(p.out1, batch * 16384 + query * 64 + chunk * 8,
                       *reinterpret_cast<const tgc_vector<tgc_bfloat16, 8>*>(
                           smem + row * 144 + chunk * 16));
  }
}

// row_reduce, 49152 rows of 64, 2 threads each, 1 loops, in registers: cast mul sum.
// Stores sum (16, 12, 256, 1) float32.
// Grid 384 x 256 threads, 12779520 bytes moved at least.
TGC_STAGE(row_reduce_sum_mul_75dba10b35,
  const tgc_bfloat16* in0;
  const tgc_bfloat16* in1;
  float* out0;
) {
  const int thread = threadIdx.x % 2;
  const int row = virtual_block * 128 + threadIdx.x / 2;
  if (row >= 49152) return;
  float sum0 = 0.0f;
#pragma unroll 4
  for (int k = 0; k < 4; k++) {
    if (const int item = k * 2 + thread; item < 8) {
      const tgc_vector<tgc_bfloat16, 8> in0x8 = tgc_load_vector<8>(p.in0, row * 64 + item * 8);
      const tgc_vector<tgc_bfloat16, 8> in1x8 = tgc_load_vector<8>(p.in1, row * 64 + item * 8);
#pragma unroll
      for (int v = 0; v < 8; v++) {
        const float in0 = tgc_element(in0x8, v);
        const float in1 = tgc_element(in1x8, v);
        const float mul0 = in0 * in1;
        sum0 = tgc_sum_op()(sum0, mul0);
      }
    }
  }
  sum0 = tgc_warp_reduce<2>(sum0, tgc_sum_op());
  if (thread == 0) {
    tgc_store(p.out0, row, sum0);
  }
}

// attention, queries: 192 x 256 x 256, tiles of 128 x 128, 3 slots, 4026531840 FLOPs: attention_backward
//   output output output.
// Stores output (16, 12, 256, 64) bfloat16; output (16, 12, 256, 64) bfloat16; output (16, 12, 256, 64)
//   bfloat16.
// Grid 384 x 256 threads, 31850496 bytes moved at least.
TGC_STAGE(attention_attention_backward_queries_d73bfc8d03,
  const tgc_bfloat16* in0;
  const tgc_bfloat16* in1;
  const tgc_bfloat16* in2;
  const tgc_bfloat16* in3;
  const float* in4;
  const float* in5;
  tgc_bfloat16* out0;
) {
  const int tile = 1 - virtual_block % 2;
  const int batch = virtual_block / 2;
  const int query_first = tile * 128;
  const int lane = threadIdx.x % 32, row_first = threadIdx.x / 32 * 16;
  const int first_column = 0, last_column = query_first + 128 < 256 ? query_first + 128 : 256;
  char* const ring = smem + 32768;
  auto fetch_q = [&](int first, char* slot) {
    const int thread = tgc_again(threadIdx.x);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int chunk = i * 256 + thread;
      const int row = chunk / 8, step = chunk % 8;
      const int query = first + row;
      const bool inside = query < 256;
      char* const target = slot + row * 128 + ((step % 8) ^ (row % 8)) * 16;
      tgc_copy_async16(target, p.in0 + (inside ? batch * 16384 + query * 64 + step * 8 : 0), inside);
    }
  };

  auto fetch_g = [&](int first, char* slot) {
    const int thread = tgc_again(threadIdx.x);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int chunk = i * 256 + thread;
      const int row = chunk / 8, step = chunk % 8;
      const int query = first + row;
      const bool inside = query < 256;
      char* const target = slot + row * 128 + ((step % 8) ^ (row % 8)) * 16;
      tgc_copy_async16(target, p.in1 + (inside ? batch * 16384 + query * 64 + step * 8 : 0), inside);
    }
  };

  auto fetch_k = [&](int first, char* slot) {
    const int thread = tgc_again(threadIdx.x);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int chunk = i * 256 + thread;
      const int row = chunk / 8, step = chunk % 8;
      const int key = first + row;
      const bool inside = key < 256;
      char* const target = slot + row * 128 + ((step % 8) ^ (row % 8)) * 16;
      tgc_copy_async16(target, p.in2 + (inside ? batch * 16384 + key * 64 + step * 8 : 0), inside);
    }
  };

  auto fetch_v = [&](int first, char* slot) {
    const int thread = tgc_again(threadIdx.x);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int chunk = i * 256 + thread;
      const int row = chunk / 8, step = chunk % 8;
      const int key = first + row;
      const bool inside = key < 256;
      char* const target = slot + row * 128 + ((step % 8) ^ (row % 8)) * 16;
      tgc_copy_async16(target, p.in3 + (inside ? batch * 16384 + key * 64 + step * 8 : 0), inside);
    }
  };
  auto fetch = [&](int first, int slot) {
    if (first < last_column) {
      fetch_k(first, ring + slot * 32768);
      fetch_v(first, ring + slot * 32768 + 16384);
    }
    tgc_copy_commit();
  };
  fetch_q(query_first, smem);
  fetch_g(query_first, smem + 16384);
  fetch(first_column, 0);
  int slot = 0, free_slot = 1;

  const int group = threadIdx.x / 128;
  const unsigned long long rows_0 =
      tgc_wgmma_descriptor(smem + group * 8192, 16384, 1024, 8);
  const unsigned long long columns_0 = tgc_wgmma_descriptor(ring, 16384, 1024, 8);
  const unsigned long long columns_1 =
      tgc_wgmma_descriptor(ring + 16384, 16384, 1024, 8);
  const unsigned long long rows_1 =
      tgc_wgmma_descriptor(smem + 16384 + group * 8192, 16384, 1024, 8);

  float by_query[1][8][4] = {};
  unsigned moved[8][4];
  float shift[1][2], delta[1][2];
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int query = query_first + row_first + half * 8 + lane / 4;
    shift[0][half] = INFINITY;
    delta[0][half] = 0.0f;
    if (query < 256) {
      const float in4 = tgc_load(p.in4, batch * 256 + query);
      const float in5 = tgc_load(p.in5, batch * 256 + query);
      shift[0][half] = in4 == -INFINITY ? INFINITY : in4 * 1.44269504f;
      delta[0][half] = in5;
    }
  }

#pragma unroll 1
  for (int column_first = first_column; column_first < last_column; column_first += 128) {
    tgc_copy_wait<3 - 3>();
    tgc_proxy_fence();
    __syncthreads();  // the slot is full, and the products of the turn before the last are complete
    const char* const columns_slot = ring + slot * 32768;
    const int turn = slot * 2048;
    float score[1][16][4], share[1][16][4];
    tgc_wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; step++)
      tgc_wgmma_bf16<128>(*reinterpret_cast<float (*)[64]>(&score[0]),
                         rows_0 + (step / 4 * 16384 + step % 4 * 32) / 16,
                         columns_0 + turn + (step / 4 * 16384 + step % 4 * 32) / 16, step > 0);
    tgc_wgmma_commit();
#pragma unroll
    for (int step = 0; step < 4; step++)
      tgc_wgmma_bf16<128>(*reinterpret_cast<float (*)[64]>(&share[0]),
                         rows_1 + (step / 4 * 16384 + step % 4 * 32) / 16,
                         columns_1 + turn + (step / 4 * 16384 + step % 4 * 32) / 16, step > 0);
    tgc_wgmma_commit();
    fetch(column_first + 128, free_slot);
    slot = slot + 1 < 3 ? slot + 1 : 0;
    free_slot = free_slot + 1 < 3 ? free_slot + 1 : 0;
    tgc_wgmma_wait<1>();
    if (column_first + 127 > query_first + row_first) {
#pragma unroll
      for (int j = 0; j < 16; j++)
#pragma unroll
        for (int q = 0; q < 4; q++) {
          const int query = query_first + row_first + q / 2 * 8 + lane / 4;
          const int key = column_first + j * 8 + lane % 4 * 2 + q % 2;
          bool seen = key <= query;
          if (!seen) score[0][j][q] = -INFINITY;
        }
    }
#pragma unroll
    for (int j = 0; j < 16; j++)
#pragma unroll
      for (int q = 0; q < 4; q++) {
        constexpr int i = 0;
        score[i][j][q] = tgc_exp2_short(tgc_fma(score[i][j][q], 0.18033688011112042f, -shift[i][q / 2]));
      }
    tgc_wgmma_wait<0>();
#pragma unroll
    for (int j = 0; j < 16; j++)
#pragma unroll
      for (int q = 0; q < 4; q++) share[0][j][q] = score[0][j][q] * (share[0][j][q] - delta[0][q / 2]);
#pragma unroll
    for (int step = 0; step < 8; step++)
#pragma unroll
      for (int q = 0; q < 4; q++) {
        const float* const pair = share[0][2 * step + q / 2] + q % 2 * 2;
        moved[step][q] = tgc_pack_bf16(pair[0], pair[1]);
      }
    tgc_wgmma_fence();
#pragma unroll
    for (int step = 0; step < 8; step++)
      tgc_wgmma_bf16_rs<64, true>(*reinterpret_cast<float (*)[32]>(&by_query[0]), moved[step],
                                columns_0 + turn + step * 128, true);
    tgc_wgmma_commit();
    tgc_wgmma_wait<0>();  // or else ptxas serializes the products (C7514)
  }
  tgc_wgmma_wait<0>();

  tgc_copy_wait<0>();
  __syncthreads();
#pragma unroll
  for (int j = 0; j < 8; j++)
#pragma unroll
    for (int half = 0; half < 2; half++)
      *reinterpret_cast<unsigned*>(smem + (row_first + half * 8 + lane / 4) * 144
                                   + j * 16 + lane % 4 * 4) =
          tgc_pack_bf16(by_query[0][j][half * 2] * 0.125f, by_query[0][j][half * 2 + 1] * 0.125f);
  __syncwarp();
#pragma unroll
  for (int e = lane; e < 128; e += 32) {
    const int row = row_first + e / (8), chunk = e % 8;
    const int query = query_first + row;
    if (query < 256)
      tgc_store_vector(p.out0, batch * 16384 + query * 64 + chunk * 8,
                       *reinterpret_cast<const tgc_vector<tgc_bfloat16, 8>*>(
                           smem + row * 144 + chunk * 16));
  }
}

// attention, keys: 192 x 256 x 256, tiles of 128 x 64, 4 slots, 4026531840 FLOPs: attention_backward output
//   output output.
// Stores output (16, 12, 256, 64) bfloat16; output (16, 12, 256, 64) bfloat16; output (16, 12, 256, 64)
//   bfloat16.
// Grid 384 x 256 threads, 38141952 bytes moved at least.
TGC_STAGE(attention_attention_backward_keys_9fe40537c1,
  const tgc_bfloat16* in0;
  const tgc_bfloat16* in1;
  const tgc_bfloat16* in2;
  const tgc_bfloat16* in3;
  tgc_bfloat16* out0;
  tgc_bfloat16* out1;
  const float* in4;
  const float* in5;
) {
  const int tile = virtual_block % 2;
  const int batch = virtual_block / 2;
  const int key_first = tile * 128;
  const int lane = threadIdx.x % 32, row_first = threadIdx.x / 32 * 16;
  const int first_column = key_first / 64 * 64, last_column = 256;
  char* const ring = smem + 32768;
  auto fetch_k = [&](int first, char* slot) {
    const int thread = tgc_again(threadIdx.x);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int chunk = i * 256 + thread;
      const int row = chunk / 8, step = chunk % 8;
      const int key = first + row;
      const bool inside = key < 256;
      char* const target = slot + row * 128 + ((step % 8) ^ (row % 8)) * 16;
      tgc_copy_async16(target, p.in0 + (inside ? batch * 16384 + key * 64 + step * 8 : 0), inside);
    }
  };

  auto fetch_v = [&](int first, char* slot) {
    const int thread = tgc_again(threadIdx.x);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int chunk = i * 256 + thread;
      const int row = chunk / 8, step = chunk % 8;
      const int key = first + row;
      const bool inside = key < 256;
      char* const target = slot + row * 128 + ((step % 8) ^ (row % 8)) * 16;
      tgc_copy_async16(target, p.in1 + (inside ? batch * 16384 + key * 64 + step * 8 : 0), inside);
    }
  };

  auto fetch_q = [&](int first, char* slot) {
    const int thread = tgc_again(threadIdx.x);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int chunk = i * 256 + thread;
      const int row = chunk / 8, step = chunk % 8;
      const int query = first + row;
      const bool inside = query < 256;
      char* const target = slot + row * 128 + ((step % 8) ^ (row % 8)) * 16;
      tgc_copy_async16(target, p.in2 + (inside ? batch * 16384 + query * 64 + step * 8 : 0), inside);
    }
  };

  auto fetch_g = [&](int first, char* slot) {
    const int thread = tgc_again(threadIdx.x);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int chunk = i * 256 + thread;
      const int row = chunk / 8, step = chunk % 8;
      const int query = first + row;
      const bool inside = query < 256;
      char* const target = slot + row * 128 + ((step % 8) ^ (row % 8)) * 16;
      tgc_copy_async16(target, p.in3 + (inside ? batch * 16384 + query * 64 + step * 8 : 0), inside);
    }
  };
  auto fetch = [&](int first, int slot) {
    if (first < last_column) {
      fetch_q(first, ring + slot * 17408);
      fetch_g(first, ring + slot * 17408 + 8192);
      if (threadIdx.x < 64) {
        const int query = first + threadIdx.x < 256 ? first + threadIdx.x : 255;
        float* const sums = reinterpret_cast<float*>(ring + slot * 17408 + 16896) + threadIdx.x;
        tgc_copy_ahead(reinterpret_cast<tgc_vector<float, 1>*>(sums), p.in4, batch * 256 + query);
        tgc_copy_ahead(reinterpret_cast<tgc_vector<float, 1>*>(sums + 64), p.in5, batch * 256 + query);
      }
    }
    tgc_copy_commit();
  };
  fetch_k(key_first, smem);
  fetch_v(key_first, smem + 16384);
#pragma unroll 1
  for (int slot = 0; slot < 2; slot++) fetch(first_column + slot * 64, slot);
  int slot = 0, free_slot = 2;

  const int group = threadIdx.x / 128;
  const unsigned long long rows_0 =
      tgc_wgmma_descriptor(smem + group * 8192, 16384, 1024, 8);
  const unsigned long long columns_0 = tgc_wgmma_descriptor(ring, 8192, 1024, 8);
  const unsigned long long columns_1 =
      tgc_wgmma_descriptor(ring + 8192, 8192, 1024, 8);
  const unsigned long long rows_1 =
      tgc_wgmma_descriptor(smem + 16384 + group * 8192, 16384, 1024, 8);

  float by_key[1][8][4] = {}, by_value[1][8][4] = {};
  unsigned weight[4][4], moved[4][4];
#pragma unroll 1
  for (int column_first = first_column; column_first < last_column; column_first += 64) {
    tgc_copy_wait<4 - 3>();
    tgc_proxy_fence();
    __syncthreads();  // the slot is full, and the products of the turn before the last are complete
    const char* const columns_slot = ring + slot * 17408;
    const int turn = slot * 1088;
    float score[1][8][4], share[1][8][4];
    tgc_wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; step++)
      tgc_wgmma_bf16<64>(*reinterpret_cast<float (*)[32]>(&score[0]),
                         rows_0 + (step / 4 * 16384 + step % 4 * 32) / 16,
                         columns_0 + turn + (step / 4 * 8192 + step % 4 * 32) / 16, step > 0);
    tgc_wgmma_commit();
#pragma unroll
    for (int step = 0; step < 4; step++)
      tgc_wgmma_bf16<64>(*reinterpret_cast<float (*)[32]>(&share[0]),
                         rows_1 + (step / 4 * 16384 + step % 4 * 32) / 16,
                         columns_1 + turn + (step / 4 * 8192 + step % 4 * 32) / 16, step > 0);
    tgc_wgmma_commit();
    fetch(column_first + 2 * 64, free_slot);
    slot = slot + 1 < 4 ? slot + 1 : 0;
    free_slot = free_slot + 1 < 4 ? free_slot + 1 : 0;
    tgc_wgmma_wait<1>();
    if (column_first < key_first + row_first + 15) {
#pragma unroll
      for (int j = 0; j < 8; j++)
#pragma unroll
        for (int q = 0; q < 4; q++) {
          const int key = key_first + row_first + q / 2 * 8 + lane / 4;
          const int query = column_first + j * 8 + lane % 4 * 2 + q % 2;
          bool seen = key <= query;
          if (!seen) score[0][j][q] = -INFINITY;
        }
    }
    const float* const sums = reinterpret_cast<const float*>(columns_slot + 16896);
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
      for (int q = 0; q < 4; q++) {
        constexpr int i = 0;
        const int column = j * 8 + lane % 4 * 2 + q % 2;
        const bool hidden = sums[column] == -INFINITY;
        const float shift = hidden ? INFINITY : sums[column] * 1.44269504f;
        score[i][j][q] = tgc_exp2_short(tgc_fma(score[i][j][q], 0.18033688011112042f, -shift));
      }
#pragma unroll
    for (int step = 0; step < 4; step++)
#pragma unroll
      for (int q = 0; q < 4; q++) {
        const float* const pair = score[0][2 * step + q / 2] + q % 2 * 2;
        weight[step][q] = tgc_pack_bf16(pair[0], pair[1]);
      }
    tgc_wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; step++)
      tgc_wgmma_bf16_rs<64, true>(*reinterpret_cast<float (*)[32]>(&by_value[0]), weight[step],
                                columns_1 + turn + step * 128, true);
    tgc_wgmma_commit();
    tgc_wgmma_wait<1>();
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
      for (int q = 0; q < 4; q++) {
        constexpr int i = 0;
        const float delta = sums[64 + j * 8 + lane % 4 * 2 + q % 2];
        share[i][j][q] = score[i][j][q] * (share[i][j][q] - delta);
      }
#pragma unroll
    for (int step = 0; step < 4; step++)
#pragma unroll
      for (int q = 0; q < 4; q++) {
        const float* const pair = share[0][2 * step + q / 2] + q % 2 * 2;
        moved[step][q] = tgc_pack_bf16(pair[0], pair[1]);
      }
    tgc_wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; step++)
      tgc_wgmma_bf16_rs<64, true>(*reinterpret_cast<float (*)[32]>(&by_key[0]), moved[step],
                                columns_0 + turn + step * 128, true);
    tgc_wgmma_commit();
  }
  tgc_wgmma_wait<0>();

  tgc_copy_wait<0>();
  __syncthreads();
#pragma unroll
  for (int j = 0; j < 8; j++)
#pragma unroll
    for (int half = 0; half < 2; half++)
      *reinterpret_cast<unsigned*>(smem + (row_first + half * 8 + lane / 4) * 144
                                   + j * 16 + lane % 4 * 4) =
          tgc_pack_bf16(by_key[0][j][half * 2] * 0.125f, by_key[0][j][half * 2 + 1] * 0.125f);
  __syncwarp();
#pragma unroll
  for (int e = lane; e < 128; e += 32) {
    const int row = row_first + e / (8), chunk = e % 8;
    const int key = key_first + row;
    if (key < 256)
      tgc_store_vector(p.out0, batch * 16384 + key * 64 + chunk * 8,
                       *reinterpret_cast<const tgc_vector<tgc_bfloat16, 8>*>(
                           smem + row * 144 + chunk * 16));
  }

#pragma unroll
  for (int j = 0; j < 8; j++)
#pragma unroll
    for (int half = 0; half < 2; half++)
      *reinterpret_cast<unsigned*>(smem + 18432 + (row_first + half * 8 + lane / 4) * 144
                                   + j * 16 + lane % 4 * 4) =
          tgc_pack_bf16(by_value[0][j][half * 2] * 1.0f, by_value[0][j][half * 2 + 1] * 1.0f);
  __syncwarp();
#pragma unroll
  for (int e = lane; e < 128; e += 32) {
    const int row = row_first + e / (8), chunk = e % 8;
    const int key = key_first + row;
    if (key < 256)
      tgc_store_vector(p.out1, batch * 16384 + key * 64 + chunk * 8,
                       *reinterpret_cast<const tgc_vector<tgc_bfloat16, 8>*>(
                           smem + 18432 + row * 144 + chunk * 16));
  }
}
