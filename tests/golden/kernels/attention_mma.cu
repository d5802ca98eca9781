// attention, forward: 192 x 1024 x 1024, tiles of 256 x 64, 3 slots, 38654705664 FLOPs: attention output
//   output.
// Stores output (16, 12, 1024, 96) bfloat16; output (16, 12, 1024) float32.
// Grid 768 x 256 threads, 151781376 bytes moved at least.
TGC_STAGE(attention_fc0d5791cd,
  const tgc_bfloat16* in0;
  const tgc_bfloat16* in1;
  const tgc_bfloat16* in2;
  float* out0;
  tgc_bfloat16* out1;
) {
  const int tile = 3 - virtual_block % 4;
  const int batch = virtual_block / 4;
  const int query_first = tile * 256;
  const int lane = threadIdx.x % 32, row_first = threadIdx.x / 32 * 32;
  const int first_column = 0, last_column = query_first + 256 < 1024 ? query_first + 256 : 1024;
  char* const ring = smem + 53248;
  auto fetch_q = [&](int first, char* slot) {
    const int thread = tgc_again(threadIdx.x);
#pragma unroll
    for (int i = 0; i < 12; i++) {
      const int chunk = i * 256 + thread;
      const int row = chunk / 12, step = chunk % 12;
      const int query = first + row;
      const bool inside = query < 1024;
      char* const target = slot + row * 208 + step * 16;
      tgc_copy_async16(target, p.in0 + (inside ? batch * 98304 + query * 96 + step * 8 : 0), inside);
    }
  };

  auto fetch_k = [&](int first, char* slot) {
    const int thread = tgc_again(threadIdx.x);
#pragma unroll
    for (int i = 0; i < 3; i++) {
      const int chunk = i * 256 + thread;
      const int row = chunk / 12, step = chunk % 12;
      const int key = first + row;
      const bool inside = key < 1024;
      char* const target = slot + row * 208 + step * 16;
      tgc_copy_async16(target, p.in1 + (inside ? batch * 98304 + key * 96 + step * 8 : 0), inside);
    }
  };

  auto fetch_v = [&](int first, char* slot) {
    const int thread = tgc_again(threadIdx.x);
#pragma unroll
    for (int i = 0; i < 3; i++) {
      const int chunk = i * 256 + thread;
      const int row = chunk / 12, step = chunk % 12;
      const int key = first + row;
      const bool inside = key < 1024;
      char* const target = slot + row * 208 + step * 16;
      tgc_copy_async16(target, p.in2 + (inside ? batch * 98304 + key * 96 + step * 8 : 0), inside);
    }
  };
  auto fetch = [&](int first, int slot) {
    if (first < last_column) {
      fetch_k(first, ring + slot * 26624);
      fetch_v(first, ring + slot * 26624 + 13312);
    }
    tgc_copy_commit();
  };
  fetch_q(query_first, smem);
#pragma unroll 1
  for (int slot = 0; slot < 2; slot++) fetch(first_column + slot * 64, slot);
  int slot = 0, free_slot = 2;

  float value[2][12][4] = {}, largest[2][2], total[2][2] = {};
#pragma unroll
  for (int i = 0; i < 2; i++) largest[i][0] = largest[i][1] = -INFINITY;

#pragma unroll 1
  for (int column_first = first_column; column_first < last_column; column_first += 64) {
    tgc_copy_wait<3 - 2>();
    __syncthreads();  // the slot is full, and no warp reads the one before it any more
    fetch(column_first + 2 * 64, free_slot);
    const char* const columns_slot = ring + slot * 26624;
    slot = slot + 1 < 3 ? slot + 1 : 0;
    free_slot = free_slot + 1 < 3 ? free_slot + 1 : 0;
    if (column_first > query_first + row_first + 31) continue;
    float score[2][8][4] = {};
#pragma unroll
    for (int step = 0; step < 6; step++) {
      unsigned a[2][4];
#pragma unroll
      for (int i = 0; i < 2; i++)
        tgc_ldmatrix_x4(a[i], smem + (row_first + i * 16 + lane % 16) * 208 + lane / 16 * 16
                                  + step * 32);
#pragma unroll
      for (int j = 0; j < 8; j += 2) {
        unsigned b[4];
        tgc_ldmatrix_x4(b, columns_slot + (j * 8 + lane / 16 * 8 + lane % 8) * 208 + lane / 8 % 2 * 16
                               + step * 32);
        const unsigned left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
#pragma unroll
        for (int i = 0; i < 2; i++) {
          tgc_mma_bf16(score[i][j], a[i], left);
          tgc_mma_bf16(score[i][j + 1], a[i], right);
        }
      }
    }
    if (column_first + 63 > query_first + row_first) {
#pragma unroll
      for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
          for (int q = 0; q < 4; q++) {
            const int query = query_first + row_first + i * 16 + q / 2 * 8 + lane / 4;
            const int key = column_first + j * 8 + lane % 4 * 2 + q % 2;
            bool seen = key <= query;
            if (!seen) score[i][j][q] = -INFINITY;
          }
    }
    bool grows = false;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int j = 0; j < 8; j++)
#pragma unroll
        for (int q = 0; q < 4; q++) grows |= score[i][j][q] > largest[i][q / 2] + 44.3614195558365f;
    if (__any_sync(0xffffffffu, grows)) {
#pragma unroll
      for (int i = 0; i < 2; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          float top = largest[i][half];
#pragma unroll
          for (int j = 0; j < 8; j++)
            top = fmaxf(top, fmaxf(score[i][j][half * 2], score[i][j][half * 2 + 1]));
          top = fmaxf(top, tgc_shuffle_xor(top, 1));
          top = fmaxf(top, tgc_shuffle_xor(top, 2));
          const float moved = (largest[i][half] - top) * 0.18033688011112042f;
          const float factor = top == largest[i][half] ? 1.0f : tgc_exp2_short(moved);
          largest[i][half] = top;
          total[i][half] *= factor;
#pragma unroll
          for (int j = 0; j < 12; j++) {
            value[i][j][half * 2] *= factor;
            value[i][j][half * 2 + 1] *= factor;
          }
        }
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
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
    for (int step = 0; step < 4; step++) {
      unsigned a[2][4];
#pragma unroll
      for (int i = 0; i < 2; i++)
#pragma unroll
        for (int q = 0; q < 4; q++) {
          const float* const pair = score[i][2 * step + q / 2] + q % 2 * 2;
          a[i][q] = tgc_pack_bf16(pair[0], pair[1]);
        }
#pragma unroll
      for (int j = 0; j < 12; j += 2) {
        unsigned b[4];
        tgc_ldmatrix_x4_trans(b, columns_slot + 13312 + (step * 16 + lane % 16) * 208 + lane / 16 * 16 + j *
            16);
        const unsigned left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
#pragma unroll
        for (int i = 0; i < 2; i++) {
          tgc_mma_bf16(value[i][j], a[i], left);
          tgc_mma_bf16(value[i][j + 1], a[i], right);
        }
      }
    }
  }

  tgc_copy_wait<0>();
#pragma unroll
  for (int i = 0; i < 2; i++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float sum = total[i][half];
      sum += tgc_shuffle_xor(sum, 1);
      sum += tgc_shuffle_xor(sum, 2);
      const bool hidden = largest[i][half] == -INFINITY && !tgc_isnan(sum);
      const float share = hidden ? NAN : 1.0f / sum;
#pragma unroll
      for (int j = 0; j < 12; j++) {
        value[i][j][half * 2] *= share;
        value[i][j][half * 2 + 1] *= share;
      }
      const int query = query_first + row_first + i * 16 + half * 8 + lane / 4;
      if (lane % 4 == 0 && query < 1024) {
        const float logarithm = (largest[i][half] * 0.18033688011112042f + tgc_log2(sum)) * 0.69314718f;
        tgc_store(p.out0, batch * 1024 + query, hidden ? -INFINITY : logarithm);
      }
    }

#pragma unroll
  for (int i = 0; i < 2; i++)
#pragma unroll
    for (int j = 0; j < 12; j++)
#pragma unroll
      for (int half = 0; half < 2; half++)
        *reinterpret_cast<unsigned*>(smem + (row_first + i * 16 + half * 8 + lane / 4) * 208
                                     + j * 16 + lane % 4 * 4) =
            tgc_pack_bf16(value[i][j][half * 2] * 1.0f, value[i][j][half * 2 + 1] * 1.0f);
  __syncwarp();
#pragma unroll
  for (int e = lane; e < 384; e += 32) {
    const int row = row_first + e / (12), chunk = e % 12;
    const int query = query_first + row;
    if (query < 1024)
      tgc_store_vector(p.out1, batch * 98304 + query * 96 + chunk * 8,
                       *reinterpret_cast<const tgc_vector<tgc_bfloat16, 8>*>(
                           smem + row * 208 + chunk * 16));
  }
}

// row_reduce, 196608 rows of 96, 4 threads each, 1 loops, in registers: cast mul sum.
// Stores sum (16, 12, 1024, 1) float32.
// Grid 3072 x 256 threads, 76283904 bytes moved at least.
TGC_STAGE(row_reduce_sum_mul_89a9b7f023,
  const tgc_bfloat16* in0;
  const tgc_bfloat16* in1;
  float* out0;
) {
  virtual_block = 3071 - virtual_block;
  const int thread = threadIdx.x % 4;
  const int row = virtual_block * 64 + threadIdx.x / 4;
  if (row >= 196608) return;
  float sum0 = 0.0f;
#pragma unroll 3
  for (int k = 0; k < 3; k++) {
    if (const int item = k * 4 + thread; item < 12) {
      const tgc_vector<tgc_bfloat16, 8> in0x8 = tgc_load_vector<8>(p.in0, row * 96 + item * 8);
      const tgc_vector<tgc_bfloat16, 8> in1x8 = tgc_load_vector<8>(p.in1, row * 96 + item * 8);
#pragma unroll
      for (int v = 0; v < 8; v++) {
        const float in0 = tgc_element(in0x8, v);
        const float in1 = tgc_element(in1x8, v);
        const float mul0 = in0 * in1;
        sum0 = tgc_sum_op()(sum0, mul0);
      }
    }
  }
  sum0 = tgc_warp_reduce<4>(sum0, tgc_sum_op());
  if (thread == 0) {
    tgc_store(p.out0, row, sum0);
  }
}

// attention, queries: 192 x 1024 x 1024, tiles of 256 x 32, 3 slots, 96636764160 FLOPs: attention_backward
//   output output output.
// Stores output (16, 12, 1024, 96) bfloat16; output (16, 12, 1024, 96) bfloat16; output (16, 12, 1024, 96)
//   bfloat16.
// Grid 768 x 256 threads, 190316544 bytes moved at least.
TGC_STAGE(attention_attention_backward_queries_177ff68b5e,
  const tgc_bfloat16* in0;
  const tgc_bfloat16* in1;
  const tgc_bfloat16* in2;
  const tgc_bfloat16* in3;
  const float* in4;
  const float* in5;
  tgc_bfloat16* out0;
) {
  const int tile = 3 - virtual_block % 4;
  const int batch = virtual_block / 4;
  const int query_first = tile * 256;
  const int lane = threadIdx.x % 32, row_first = threadIdx.x / 32 * 32;
  const int first_column = 0, last_column = query_first + 256 < 1024 ? query_first + 256 : 1024;
  char* const ring = smem + 106496;
  auto fetch_q = [&](int first, char* slot) {
    const int thread = tgc_again(threadIdx.x);
#pragma unroll
    for (int i = 0; i < 12; i++) {
      const int chunk = i * 256 + thread;
      const int row = chunk / 12, step = chunk % 12;
      const int query = first + row;
      const bool inside = query < 1024;
      char* const target = slot + row * 208 + step * 16;
      tgc_copy_async16(target, p.in0 + (inside ? batch * 98304 + query * 96 + step * 8 : 0), inside);
    }
  };

  auto fetch_g = [&](int first, char* slot) {
    const int thread = tgc_again(threadIdx.x);
#pragma unroll
    for (int i = 0; i < 12; i++) {
      const int chunk = i * 256 + thread;
      const int row = chunk / 12, step = chunk % 12;
      const int query = first + row;
      const bool inside = query < 1024;
      char* const target = slot + row * 208 + step * 16;
      tgc_copy_async16(target, p.in1 + (inside ? batch * 98304 + query * 96 + step * 8 : 0), inside);
    }
  };

  auto fetch_k = [&](int first, char* slot) {
    const int thread = tgc_again(threadIdx.x);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int chunk = i * 256 + thread;
      if (chunk >= 384) break;
      const int row = chunk / 12, step = chunk % 12;
      const int key = first + row;
      const bool inside = key < 1024;
      char* const target = slot + row * 208 + step * 16;
      tgc_copy_async16(target, p.in2 + (inside ? batch * 98304 + key * 96 + step * 8 : 0), inside);
    }
  };

  auto fetch_v = [&](int first, char* slot) {
    const int thread = tgc_again(threadIdx.x);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int chunk = i * 256 + thread;
      if (chunk >= 384) break;
      const int row = chunk / 12, step = chunk % 12;
      const int key = first + row;
      const bool inside = key < 1024;
      char* const target = slot + row * 208 + step * 16;
      tgc_copy_async16(target, p.in3 + (inside ? batch * 98304 + key * 96 + step * 8 : 0), inside);
    }
  };
  auto fetch = [&](int first, int slot) {
    if (first < last_column) {
      fetch_k(first, ring + slot * 13312);
      fetch_v(first, ring + slot * 13312 + 6656);
    }
    tgc_copy_commit();
  };
  fetch_q(query_first, smem);
  fetch_g(query_first, smem + 53248);
#pragma unroll 1
  for (int slot = 0; slot < 2; slot++) fetch(first_column + slot * 32, slot);
  int slot = 0, free_slot = 2;

  float by_query[2][12][4] = {};
  float shift[2][2], delta[2][2];
#pragma unroll
  for (int i = 0; i < 2; i++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int query = query_first + row_first + i * 16 + half * 8 + lane / 4;
      shift[i][half] = INFINITY;
      delta[i][half] = 0.0f;
      if (query < 1024) {
        const float in4 = tgc_load(p.in4, batch * 1024 + query);
        const float in5 = tgc_load(p.in5, batch * 1024 + query);
        shift[i][half] = in4 == -INFINITY ? INFINITY : in4 * 1.44269504f;
        delta[i][half] = in5;
      }
    }

#pragma unroll 1
  for (int column_first = first_column; column_first < last_column; column_first += 32) {
    tgc_copy_wait<3 - 2>();
    __syncthreads();  // the slot is full, and no warp reads the one before it any more
    fetch(column_first + 2 * 32, free_slot);
    const char* const columns_slot = ring + slot * 13312;
    slot = slot + 1 < 3 ? slot + 1 : 0;
    free_slot = free_slot + 1 < 3 ? free_slot + 1 : 0;
    if (column_first > query_first + row_first + 31) continue;
    float score[2][4][4] = {};
#pragma unroll
    for (int step = 0; step < 6; step++) {
      unsigned a[2][4];
#pragma unroll
      for (int i = 0; i < 2; i++)
        tgc_ldmatrix_x4(a[i], smem + (row_first + i * 16 + lane % 16) * 208 + lane / 16 * 16
                                  + step * 32);
#pragma unroll
      for (int j = 0; j < 4; j += 2) {
        unsigned b[4];
        tgc_ldmatrix_x4(b, columns_slot + (j * 8 + lane / 16 * 8 + lane % 8) * 208 + lane / 8 % 2 * 16
                               + step * 32);
        const unsigned left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
#pragma unroll
        for (int i = 0; i < 2; i++) {
          tgc_mma_bf16(score[i][j], a[i], left);
          tgc_mma_bf16(score[i][j + 1], a[i], right);
        }
      }
    }
    if (column_first + 31 > query_first + row_first) {
#pragma unroll
      for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
          for (int q = 0; q < 4; q++) {
            const int query = query_first + row_first + i * 16 + q / 2 * 8 + lane / 4;
            const int key = column_first + j * 8 + lane % 4 * 2 + q % 2;
            bool seen = key <= query;
            if (!seen) score[i][j][q] = -INFINITY;
          }
    }
    float share[2][4][4] = {};
#pragma unroll
    for (int step = 0; step < 6; step++) {
      unsigned a[2][4];
#pragma unroll
      for (int i = 0; i < 2; i++)
        tgc_ldmatrix_x4(a[i], smem + 53248 + (row_first + i * 16 + lane % 16) * 208 + lane / 16 * 16
                                  + step * 32);
#pragma unroll
      for (int j = 0; j < 4; j += 2) {
        unsigned b[4];
        tgc_ldmatrix_x4(b, columns_slot + 6656 + (j * 8 + lane / 16 * 8 + lane % 8) * 208 + lane / 8 % 2 * 16
                               + step * 32);
        const unsigned left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
#pragma unroll
        for (int i = 0; i < 2; i++) {
          tgc_mma_bf16(share[i][j], a[i], left);
          tgc_mma_bf16(share[i][j + 1], a[i], right);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int j = 0; j < 4; j++)
#pragma unroll
        for (int q = 0; q < 4; q++) {
          const float p = tgc_exp2_short(tgc_fma(score[i][j][q], 0.18033688011112042f, -shift[i][q / 2]));
          share[i][j][q] = p * (share[i][j][q] - delta[i][q / 2]);
        }
#pragma unroll
    for (int step = 0; step < 2; step++) {
      unsigned a[2][4];
#pragma unroll
      for (int i = 0; i < 2; i++)
#pragma unroll
        for (int q = 0; q < 4; q++) {
          const float* const pair = share[i][2 * step + q / 2] + q % 2 * 2;
          a[i][q] = tgc_pack_bf16(pair[0], pair[1]);
        }
#pragma unroll
      for (int j = 0; j < 12; j += 2) {
        unsigned b[4];
        tgc_ldmatrix_x4_trans(b, columns_slot + (step * 16 + lane % 16) * 208 + lane / 16 * 16 + j * 16);
        const unsigned left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
#pragma unroll
        for (int i = 0; i < 2; i++) {
          tgc_mma_bf16(by_query[i][j], a[i], left);
          tgc_mma_bf16(by_query[i][j + 1], a[i], right);
        }
      }
    }
  }

  tgc_copy_wait<0>();
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 2; i++)
#pragma unroll
    for (int j = 0; j < 12; j++)
#pragma unroll
      for (int half = 0; half < 2; half++)
        *reinterpret_cast<unsigned*>(smem + (row_first + i * 16 + half * 8 + lane / 4) * 208
                                     + j * 16 + lane % 4 * 4) =
            tgc_pack_bf16(by_query[i][j][half * 2] * 0.125f, by_query[i][j][half * 2 + 1] * 0.125f);
  __syncwarp();
#pragma unroll
  for (int e = lane; e < 384; e += 32) {
    const int row = row_first + e / (12), chunk = e % 12;
    const int query = query_first + row;
    if (query < 1024)
      tgc_store_vector(p.out0, batch * 98304 + query * 96 + chunk * 8,
                       *reinterpret_cast<const tgc_vector<tgc_bfloat16, 8>*>(
                           smem + row * 208 + chunk * 16));
  }
}

// attention, keys: 192 x 1024 x 1024, tiles of 128 x 64, 3 slots, 96636764160 FLOPs: attention_backward output
//   output output.
// Stores output (16, 12, 1024, 96) bfloat16; output (16, 12, 1024, 96) bfloat16; output (16, 12, 1024, 96)
//   bfloat16.
// Grid 1536 x 256 threads, 228065280 bytes moved at least.
TGC_STAGE(attention_attention_backward_keys_e4466d1920,
  const tgc_bfloat16* in0;
  const tgc_bfloat16* in1;
  const tgc_bfloat16* in2;
  const tgc_bfloat16* in3;
  tgc_bfloat16* out0;
  tgc_bfloat16* out1;
  const float* in4;
  const float* in5;
) {
  const int tile = virtual_block % 8;
  const int batch = virtual_block / 8;
  const int key_first = tile * 128;
  const int lane = threadIdx.x % 32, row_first = threadIdx.x / 32 * 16;
  const int first_column = key_first / 64 * 64, last_column = 1024;
  char* const ring = smem + 53248;
  auto fetch_k = [&](int first, char* slot) {
    const int thread = tgc_again(threadIdx.x);
#pragma unroll
    for (int i = 0; i < 6; i++) {
      const int chunk = i * 256 + thread;
      const int row = chunk / 12, step = chunk % 12;
      const int key = first + row;
      const bool inside = key < 1024;
      char* const target = slot + row * 208 + step * 16;
      tgc_copy_async16(target, p.in0 + (inside ? batch * 98304 + key * 96 + step * 8 : 0), inside);
    }
  };

  auto fetch_v = [&](int first, char* slot) {
    const int thread = tgc_again(threadIdx.x);
#pragma unroll
    for (int i = 0; i < 6; i++) {
      const int chunk = i * 256 + thread;
      const int row = chunk / 12, step = chunk % 12;
      const int key = first + row;
      const bool inside = key < 1024;
      char* const target = slot + row * 208 + step * 16;
      tgc_copy_async16(target, p.in1 + (inside ? batch * 98304 + key * 96 + step * 8 : 0), inside);
    }
  };

  auto fetch_q = [&](int first, char* slot) {
    const int thread = tgc_again(threadIdx.x);
#pragma unroll
    for (int i = 0; i < 3; i++) {
      const int chunk = i * 256 + thread;
      const int row = chunk / 12, step = chunk % 12;
      const int query = first + row;
      const bool inside = query < 1024;
      char* const target = slot + row * 208 + step * 16;
      tgc_copy_async16(target, p.in2 + (inside ? batch * 98304 + query * 96 + step * 8 : 0), inside);
    }
  };

  auto fetch_g = [&](int first, char* slot) {
    const int thread = tgc_again(threadIdx.x);
#pragma unroll
    for (int i = 0; i < 3; i++) {
      const int chunk = i * 256 + thread;
      const int row = chunk / 12, step = chunk % 12;
      const int query = first + row;
      const bool inside = query < 1024;
      char* const target = slot + row * 208 + step * 16;
      tgc_copy_async16(target, p.in3 + (inside ? batch * 98304 + query * 96 + step * 8 : 0), inside);
    }
  };
  auto fetch = [&](int first, int slot) {
    if (first < last_column) {
      fetch_q(first, ring + slot * 27136);
      fetch_g(first, ring + slot * 27136 + 13312);
      if (threadIdx.x < 64) {
        const int query = first + threadIdx.x < 1024 ? first + threadIdx.x : 1023;
        float* const sums = reinterpret_cast<float*>(ring + slot * 27136 + 26624) + threadIdx.x;
        tgc_copy_ahead(reinterpret_cast<tgc_vector<float, 1>*>(sums), p.in4, batch * 1024 + query);
        tgc_copy_ahead(reinterpret_cast<tgc_vector<float, 1>*>(sums + 64), p.in5, batch * 1024 + query);
      }
    }
    tgc_copy_commit();
  };
  fetch_k(key_first, smem);
  fetch_v(key_first, smem + 26624);
#pragma unroll 1
  for (int slot = 0; slot < 2; slot++) fetch(first_column + slot * 64, slot);
  int slot = 0, free_slot = 2;

  float by_key[1][12][4] = {};
  float by_value[1][12][4] = {};
#pragma unroll 1
  for (int column_first = first_column; column_first < last_column; column_first += 64) {
    tgc_copy_wait<3 - 2>();
    __syncthreads();  // the slot is full, and no warp reads the one before it any more
    fetch(column_first + 2 * 64, free_slot);
    const char* const columns_slot = ring + slot * 27136;
    slot = slot + 1 < 3 ? slot + 1 : 0;
    free_slot = free_slot + 1 < 3 ? free_slot + 1 : 0;
    if (column_first + 63 < key_first + row_first) continue;
    float score[1][8][4] = {};
#pragma unroll
    for (int step = 0; step < 6; step++) {
      unsigned a[1][4];
      tgc_ldmatrix_x4(a[0], smem + (row_first + lane % 16) * 208 + lane / 16 * 16
                                + step * 32);
#pragma unroll
      for (int j = 0; j < 8; j += 2) {
        unsigned b[4];
        tgc_ldmatrix_x4(b, columns_slot + (j * 8 + lane / 16 * 8 + lane % 8) * 208 + lane / 8 % 2 * 16
                               + step * 32);
        const unsigned left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
        tgc_mma_bf16(score[0][j], a[0], left);
        tgc_mma_bf16(score[0][j + 1], a[0], right);
      }
    }
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
    const float* const sums = reinterpret_cast<const float*>(columns_slot + 26624);
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
      for (int q = 0; q < 4; q++) {
        const int column = j * 8 + lane % 4 * 2 + q % 2;
        const bool hidden = sums[column] == -INFINITY;
        const float shift = hidden ? INFINITY : sums[column] * 1.44269504f;
        score[0][j][q] = tgc_exp2_short(tgc_fma(score[0][j][q], 0.18033688011112042f, -shift));
      }
#pragma unroll
    for (int step = 0; step < 4; step++) {
      unsigned a[1][4];
#pragma unroll
      for (int q = 0; q < 4; q++) {
        const float* const pair = score[0][2 * step + q / 2] + q % 2 * 2;
        a[0][q] = tgc_pack_bf16(pair[0], pair[1]);
      }
#pragma unroll
      for (int j = 0; j < 12; j += 2) {
        unsigned b[4];
        tgc_ldmatrix_x4_trans(b, columns_slot + 13312 + (step * 16 + lane % 16) * 208 + lane / 16 * 16 + j *
            16);
        const unsigned left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
        tgc_mma_bf16(by_value[0][j], a[0], left);
        tgc_mma_bf16(by_value[0][j + 1], a[0], right);
      }
    }
    float share[1][8][4] = {};
#pragma unroll
    for (int step = 0; step < 6; step++) {
      unsigned a[1][4];
      tgc_ldmatrix_x4(a[0], smem + 26624 + (row_first + lane % 16) * 208 + lane / 16 * 16
                                + step * 32);
#pragma unroll
      for (int j = 0; j < 8; j += 2) {
        unsigned b[4];
        tgc_ldmatrix_x4(b, columns_slot + 13312 + (j * 8 + lane / 16 * 8 + lane % 8) * 208 + lane / 8 % 2 * 16
                               + step * 32);
        const unsigned left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
        tgc_mma_bf16(share[0][j], a[0], left);
        tgc_mma_bf16(share[0][j + 1], a[0], right);
      }
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
      for (int q = 0; q < 4; q++) {
        const float delta = sums[64 + j * 8 + lane % 4 * 2 + q % 2];
        share[0][j][q] = score[0][j][q] * (share[0][j][q] - delta);
      }
#pragma unroll
    for (int step = 0; step < 4; step++) {
      unsigned a[1][4];
#pragma unroll
      for (int q = 0; q < 4; q++) {
        const float* const pair = share[0][2 * step + q / 2] + q % 2 * 2;
        a[0][q] = tgc_pack_bf16(pair[0], pair[1]);
      }
#pragma unroll
      for (int j = 0; j < 12; j += 2) {
        unsigned b[4];
        tgc_ldmatrix_x4_trans(b, columns_slot + (step * 16 + lane % 16) * 208 + lane / 16 * 16 + j * 16);
        const unsigned left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
        tgc_mma_bf16(by_key[0][j], a[0], left);
        tgc_mma_bf16(by_key[0][j + 1], a[0], right);
      }
    }
  }

  tgc_copy_wait<0>();
  __syncthreads();
#pragma unroll
  for (int j = 0; j < 12; j++)
#pragma unroll
    for (int half = 0; half < 2; half++)
      *reinterpret_cast<unsigned*>(smem + (row_first + half * 8 + lane / 4) * 208
                                   + j * 16 + lane % 4 * 4) =
          tgc_pack_bf16(by_key[0][j][half * 2] * 0.125f, by_key[0][j][half * 2 + 1] * 0.125f);
  __syncwarp();
#pragma unroll
  for (int e = lane; e < 192; e += 32) {
    const int row = row_first + e / (12), chunk = e % 12;
    const int key = key_first + row;
    if (key < 1024)
      tgc_store_vector(p.out0, batch * 98304 + key * 96 + chunk * 8,
                       *reinterpret_cast<const tgc_vector<tgc_bfloat16, 8>*>(
                           smem + row * 208 + chunk * 16));
  }

#pragma unroll
  for (int j = 0; j < 12; j++)
#pragma unroll
    for (int half = 0; half < 2; half++)
      *reinterpret_cast<unsigned*>(smem + 26624 + (row_first + half * 8 + lane / 4) * 208
                                   + j * 16 + lane % 4 * 4) =
          tgc_pack_bf16(by_value[0][j][half * 2] * 1.0f, by_value[0][j][half * 2 + 1] * 1.0f);
  __syncwarp();
#pragma unroll
  for (int e = lane; e < 192; e += 32) {
    const int row = row_first + e / (12), chunk = e % 12;
    const int key = key_first + row;
    if (key < 1024)
      tgc_store_vector(p.out1, batch * 98304 + key * 96 + chunk * 8,
                       *reinterpret_cast<const tgc_vector<tgc_bfloat16, 8>*>(
                           smem + 26624 + row * 208 + chunk * 16));
  }
}
