// attention, forward: 192 x 1024 x 1024, tiles of 128 x 64, 3 slots, 12884901888 FLOPs: attention output
//   output.
// Stores output (16, 12, 1024, 32) float32; output (16, 12, 1024) float32.
// Grid 1536 x 256 threads, 101449728 bytes moved at least.
TGC_STAGE(attention_3ed521fbd0,
  const float* in0;
  const float* in1;
  const float* in2;
  float* out0;
  float* out1;
) {
  const int tile = 7 - virtual_block % 8;
  const int batch = virtual_block / 8;
  const int query_first = tile * 128;
  const int lane = threadIdx.x % 32, row_first = threadIdx.x / 32 * 16;
  const int first_column = 0, last_column = query_first + 128 < 1024 ? query_first + 128 : 1024;
  char* const ring = smem + 18432;
  auto fetch_q = [&](int first, char* slot) {
    const int thread = tgc_again(threadIdx.x);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int chunk = i * 256 + thread;
      const int row = chunk / 8, step = chunk % 8;
      const int query = first + row;
      const bool inside = query < 1024;
      char* const target = slot + row * 144 + step * 16;
      tgc_copy_async16(target, p.in0 + (inside ? batch * 32768 + query * 32 + step * 4 : 0), inside);
    }
  };

  auto fetch_k = [&](int first, char* slot) {
    const int thread = tgc_again(threadIdx.x);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int chunk = i * 256 + thread;
      const int row = chunk / 8, step = chunk % 8;
      const int key = first + row;
      const bool inside = key < 1024;
      char* const target = slot + row * 144 + step * 16;
      tgc_copy_async16(target, p.in1 + (inside ? batch * 32768 + key * 32 + step * 4 : 0), inside);
    }
  };

  auto fetch_v = [&](int first, char* slot) {
    const int thread = tgc_again(threadIdx.x);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int chunk = i * 256 + thread;
      const int row = chunk / 8, step = chunk % 8;
      const int key = first + row;
      const bool inside = key < 1024;
      char* const target = slot + row * 144 + step * 16;
      tgc_copy_async16(target, p.in2 + (inside ? batch * 32768 + key * 32 + step * 4 : 0), inside);
    }
  };
  auto fetch = [&](int first, int slot) {
    if (first < last_column) {
      fetch_k(first, ring + slot * 18432);
      fetch_v(first, ring + slot * 18432 + 9216);
    }
    tgc_copy_commit();
  };
  fetch_q(query_first, smem);
#pragma unroll 1
  for (int slot = 0; slot < 2; slot++) fetch(first_column + slot * 64, slot);
  int slot = 0, free_slot = 2;

  float value[1][4][4] = {}, largest[1][2], total[1][2] = {};
  largest[0][0] = largest[0][1] = -INFINITY;

#pragma unroll 1
  for (int column_first = first_column; column_first < last_column; column_first += 64) {
    tgc_copy_wait<3 - 2>();
    __syncthreads();  // the slot is full, and no warp reads the one before it any more
    fetch(column_first + 2 * 64, free_slot);
    const char* const columns_slot = ring + slot * 18432;
    slot = slot + 1 < 3 ? slot + 1 : 0;
    free_slot = free_slot + 1 < 3 ? free_slot + 1 : 0;
    if (column_first > query_first + row_first + 15) continue;
    float score[1][8][4] = {};
#pragma unroll
    for (int step = 0; step < 4; step++) {
      unsigned a[1][4];
      tgc_ldmatrix_x4(a[0], smem + (row_first + lane % 16) * 144 + lane / 16 * 16
                                + step * 32);
#pragma unroll
      for (int j = 0; j < 8; j += 2) {
        unsigned b[4];
        tgc_ldmatrix_x4(b, columns_slot + (j * 8 + lane / 16 * 8 + lane % 8) * 144 + lane / 8 % 2 * 16
                               + step * 32);
        const unsigned left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
        tgc_mma_tf32(score[0][j], a[0], left);
        tgc_mma_tf32(score[0][j + 1], a[0], right);
      }
    }
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
    if (__any_sync(0xffffffffu, grows)) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        float top = largest[0][half];
#pragma unroll
        for (int j = 0; j < 8; j++)
          top = fmaxf(top, fmaxf(score[0][j][half * 2], score[0][j][half * 2 + 1]));
        top = fmaxf(top, tgc_shuffle_xor(top, 1));
        top = fmaxf(top, tgc_shuffle_xor(top, 2));
        const float moved = (largest[0][half] - top) * 0.18033688011112042f;
        const float factor = top == largest[0][half] ? 1.0f : tgc_exp2_short(moved);
        largest[0][half] = top;
        total[0][half] *= factor;
#pragma unroll
        for (int j = 0; j < 4; j++) {
          value[0][j][half * 2] *= factor;
          value[0][j][half * 2 + 1] *= factor;
        }
      }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const float shift = largest[0][half] == -INFINITY ? 0.0f : largest[0][half] * 0.18033688011112042f;
#pragma unroll
      for (int j = 0; j < 8; j++)
#pragma unroll
        for (int q = half * 2; q < half * 2 + 2; q++) {
          score[0][j][q] = tgc_exp2_short(tgc_fma(score[0][j][q], 0.18033688011112042f, -shift));
          total[0][half] += score[0][j][q];
        }
    }
#pragma unroll
    for (int step = 0; step < 8; step++) {
      unsigned a[1][4];
#pragma unroll
      for (int q = 0; q < 4; q++) a[0][q] = tgc_tf32(score[0][step][q % 2 * 2 + q / 2]);
#pragma unroll
      for (int j = 0; j < 4; j += 2) {
        const char* const from = columns_slot + 9216 + (step * 8 + lane % 4 * 2) * 144 + lane / 4 * 8 + j * 32;
        const auto even = *reinterpret_cast<const tgc_vector<float, 2>*>(from);
        const auto odd = *reinterpret_cast<const tgc_vector<float, 2>*>(from + 144);
#pragma unroll
        for (int side = 0; side < 2; side++) {
          const unsigned b[2] = {__float_as_uint(even.at[side]), __float_as_uint(odd.at[side])};
          tgc_mma_tf32(value[0][j + side], a[0], b);
        }
      }
    }
  }

  tgc_copy_wait<0>();
#pragma unroll
  for (int half = 0; half < 2; half++) {
    float sum = total[0][half];
    sum += tgc_shuffle_xor(sum, 1);
    sum += tgc_shuffle_xor(sum, 2);
    const bool hidden = largest[0][half] == -INFINITY && !tgc_isnan(sum);
    const float share = hidden ? NAN : 1.0f / sum;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      value[0][j][half * 2] *= share;
      value[0][j][half * 2 + 1] *= share;
    }
    const int query = query_first + row_first + half * 8 + lane / 4;
    if (lane % 4 == 0 && query < 1024) {
      const float logarithm = (largest[0][half] * 0.18033688011112042f + tgc_log2(sum)) * 0.69314718f;
      tgc_store(p.out0, batch * 1024 + query, hidden ? -INFINITY : logarithm);
    }
  }

#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int query = query_first + row_first + half * 8 + lane / 4;
    if (query < 1024) {
#pragma unroll
      for (int j = 0; j < 4; j += 2) {
        const auto sum = [&](int side, int q) { return value[0][j + side][half * 2 + q] * 1.0f; };
        tgc_store_vector(p.out1, batch * 32768 + query * 32 + j * 8 + lane % 4 * 4,
                         tgc_vector<float, 4>{{sum(0, 0), sum(1, 0), sum(0, 1), sum(1, 1)}});
      }
    }
  }
}

// row_reduce, 196608 rows of 32, 2 threads each, 1 loops, in registers: mul sum.
// Stores sum (16, 12, 1024, 1) float32.
// Grid 1536 x 256 threads, 51118080 bytes moved at least.
TGC_STAGE(row_reduce_sum_mul_86dcf131ac,
  const float* in0;
  const float* in1;
  float* out0;
) {
  virtual_block = 1535 - virtual_block;
  const int thread = threadIdx.x % 2;
  const int row = virtual_block * 128 + threadIdx.x / 2;
  if (row >= 196608) return;
  float sum0 = 0.0f;
#pragma unroll 4
  for (int k = 0; k < 4; k++) {
    if (const int item = k * 2 + thread; item < 8) {
      const tgc_vector<float, 4> in0x4 = tgc_load_vector<4>(p.in0, row * 32 + item * 4);
      const tgc_vector<float, 4> in1x4 = tgc_load_vector<4>(p.in1, row * 32 + item * 4);
#pragma unroll
      for (int v = 0; v < 4; v++) {
        const float in0 = tgc_element(in0x4, v);
        const float in1 = tgc_element(in1x4, v);
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

// attention, queries: 192 x 1024 x 1024, tiles of 128 x 64, 3 slots, 32212254720 FLOPs: attention_backward
//   output output output.
// Stores output (16, 12, 1024, 32) float32; output (16, 12, 1024, 32) float32; output (16, 12, 1024, 32)
//   float32.
// Grid 1536 x 256 threads, 127401984 bytes moved at least.
TGC_STAGE(attention_attention_backward_queries_f9561e8a43,
  const float* in0;
  const float* in1;
  const float* in2;
  const float* in3;
  const float* in4;
  const float* in5;
  float* out0;
) {
  const int tile = 7 - virtual_block % 8;
  const int batch = virtual_block / 8;
  const int query_first = tile * 128;
  const int lane = threadIdx.x % 32, row_first = threadIdx.x / 32 * 16;
  const int first_column = 0, last_column = query_first + 128 < 1024 ? query_first + 128 : 1024;
  char* const ring = smem + 36864;
  auto fetch_q = [&](int first, char* slot) {
    const int thread = tgc_again(threadIdx.x);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int chunk = i * 256 + thread;
      const int row = chunk / 8, step = chunk % 8;
      const int query = first + row;
      const bool inside = query < 1024;
      char* const target = slot + row * 144 + step * 16;
      tgc_copy_async16(target, p.in0 + (inside ? batch * 32768 + query * 32 + step * 4 : 0), inside);
    }
  };

  auto fetch_g = [&](int first, char* slot) {
    const int thread = tgc_again(threadIdx.x);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int chunk = i * 256 + thread;
      const int row = chunk / 8, step = chunk % 8;
      const int query = first + row;
      const bool inside = query < 1024;
      char* const target = slot + row * 144 + step * 16;
      tgc_copy_async16(target, p.in1 + (inside ? batch * 32768 + query * 32 + step * 4 : 0), inside);
    }
  };

  auto fetch_k = [&](int first, char* slot) {
    const int thread = tgc_again(threadIdx.x);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int chunk = i * 256 + thread;
      const int row = chunk / 8, step = chunk % 8;
      const int key = first + row;
      const bool inside = key < 1024;
      char* const target = slot + row * 144 + step * 16;
      tgc_copy_async16(target, p.in2 + (inside ? batch * 32768 + key * 32 + step * 4 : 0), inside);
    }
  };

  auto fetch_v = [&](int first, char* slot) {
    const int thread = tgc_again(threadIdx.x);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int chunk = i * 256 + thread;
      const int row = chunk / 8, step = chunk % 8;
      const int key = first + row;
      const bool inside = key < 1024;
      char* const target = slot + row * 144 + step * 16;
      tgc_copy_async16(target, p.in3 + (inside ? batch * 32768 + key * 32 + step * 4 : 0), inside);
    }
  };
  auto fetch = [&](int first, int slot) {
    if (first < last_column) {
      fetch_k(first, ring + slot * 18432);
      fetch_v(first, ring + slot * 18432 + 9216);
    }
    tgc_copy_commit();
  };
  fetch_q(query_first, smem);
  fetch_g(query_first, smem + 18432);
#pragma unroll 1
  for (int slot = 0; slot < 2; slot++) fetch(first_column + slot * 64, slot);
  int slot = 0, free_slot = 2;

  float by_query[1][4][4] = {};
  float shift[1][2], delta[1][2];
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int query = query_first + row_first + half * 8 + lane / 4;
    shift[0][half] = INFINITY;
    delta[0][half] = 0.0f;
    if (query < 1024) {
      const float in4 = tgc_load(p.in4, batch * 1024 + query);
      const float in5 = tgc_load(p.in5, batch * 1024 + query);
      shift[0][half] = in4 == -INFINITY ? INFINITY : in4 * 1.44269504f;
      delta[0][half] = in5;
    }
  }

#pragma unroll 1
  for (int column_first = first_column; column_first < last_column; column_first += 64) {
    tgc_copy_wait<3 - 2>();
    __syncthreads();  // the slot is full, and no warp reads the one before it any more
    fetch(column_first + 2 * 64, free_slot);
    const char* const columns_slot = ring + slot * 18432;
    slot = slot + 1 < 3 ? slot + 1 : 0;
    free_slot = free_slot + 1 < 3 ? free_slot + 1 : 0;
    if (column_first > query_first + row_first + 15) continue;
    float score[1][8][4] = {};
#pragma unroll
    for (int step = 0; step < 4; step++) {
      unsigned a[1][4];
      tgc_ldmatrix_x4(a[0], smem + (row_first + lane % 16) * 144 + lane / 16 * 16
                                + step * 32);
#pragma unroll
      for (int j = 0; j < 8; j += 2) {
        unsigned b[4];
        tgc_ldmatrix_x4(b, columns_slot + (j * 8 + lane / 16 * 8 + lane % 8) * 144 + lane / 8 % 2 * 16
                               + step * 32);
        const unsigned left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
        tgc_mma_tf32(score[0][j], a[0], left);
        tgc_mma_tf32(score[0][j + 1], a[0], right);
      }
    }
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
    float share[1][8][4] = {};
#pragma unroll
    for (int step = 0; step < 4; step++) {
      unsigned a[1][4];
      tgc_ldmatrix_x4(a[0], smem + 18432 + (row_first + lane % 16) * 144 + lane / 16 * 16
                                + step * 32);
#pragma unroll
      for (int j = 0; j < 8; j += 2) {
        unsigned b[4];
        tgc_ldmatrix_x4(b, columns_slot + 9216 + (j * 8 + lane / 16 * 8 + lane % 8) * 144 + lane / 8 % 2 * 16
                               + step * 32);
        const unsigned left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
        tgc_mma_tf32(share[0][j], a[0], left);
        tgc_mma_tf32(share[0][j + 1], a[0], right);
      }
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
      for (int q = 0; q < 4; q++) {
        const float p = tgc_exp2_short(tgc_fma(score[0][j][q], 0.18033688011112042f, -shift[0][q / 2]));
        share[0][j][q] = p * (share[0][j][q] - delta[0][q / 2]);
      }
#pragma unroll
    for (int step = 0; step < 8; step++) {
      unsigned a[1][4];
#pragma unroll
      for (int q = 0; q < 4; q++) a[0][q] = tgc_tf32(share[0][step][q % 2 * 2 + q / 2]);
#pragma unroll
      for (int j = 0; j < 4; j += 2) {
        const char* const from = columns_slot + (step * 8 + lane % 4 * 2) * 144 + lane / 4 * 8 + j * 32;
        const auto even = *reinterpret_cast<const tgc_vector<float, 2>*>(from);
        const auto odd = *reinterpret_cast<const tgc_vector<float, 2>*>(from + 144);
#pragma unroll
        for (int side = 0; side < 2; side++) {
          const unsigned b[2] = {__float_as_uint(even.at[side]), __float_as_uint(odd.at[side])};
          tgc_mma_tf32(by_query[0][j + side], a[0], b);
        }
      }
    }
  }

  tgc_copy_wait<0>();
  __syncthreads();
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int query = query_first + row_first + half * 8 + lane / 4;
    if (query < 1024) {
#pragma unroll
      for (int j = 0; j < 4; j += 2) {
        const auto sum = [&](int side, int q) { return by_query[0][j + side][half * 2 + q] * 0.125f; };
        tgc_store_vector(p.out0, batch * 32768 + query * 32 + j * 8 + lane % 4 * 4,
                         tgc_vector<float, 4>{{sum(0, 0), sum(1, 0), sum(0, 1), sum(1, 1)}});
      }
    }
  }
}

// attention, keys: 192 x 1024 x 1024, tiles of 128 x 64, 3 slots, 32212254720 FLOPs: attention_backward output
//   output output.
// Stores output (16, 12, 1024, 32) float32; output (16, 12, 1024, 32) float32; output (16, 12, 1024, 32)
//   float32.
// Grid 1536 x 256 threads, 152567808 bytes moved at least.
TGC_STAGE(attention_attention_backward_keys_b77e2bed70,
  const float* in0;
  const float* in1;
  const float* in2;
  const float* in3;
  float* out0;
  float* out1;
  const float* in4;
  const float* in5;
) {
  const int tile = virtual_block % 8;
  const int batch = virtual_block / 8;
  const int key_first = tile * 128;
  const int lane = threadIdx.x % 32, row_first = threadIdx.x / 32 * 16;
  const int first_column = key_first / 64 * 64, last_column = 1024;
  char* const ring = smem + 36864;
  auto fetch_k = [&](int first, char* slot) {
    const int thread = tgc_again(threadIdx.x);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int chunk = i * 256 + thread;
      const int row = chunk / 8, step = chunk % 8;
      const int key = first + row;
      const bool inside = key < 1024;
      char* const target = slot + row * 144 + step * 16;
      tgc_copy_async16(target, p.in0 + (inside ? batch * 32768 + key * 32 + step * 4 : 0), inside);
    }
  };

  auto fetch_v = [&](int first, char* slot) {
    const int thread = tgc_again(threadIdx.x);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int chunk = i * 256 + thread;
      const int row = chunk / 8, step = chunk % 8;
      const int key = first + row;
      const bool inside = key < 1024;
      char* const target = slot + row * 144 + step * 16;
      tgc_copy_async16(target, p.in1 + (inside ? batch * 32768 + key * 32 + step * 4 : 0), inside);
    }
  };

  auto fetch_q = [&](int first, char* slot) {
    const int thread = tgc_again(threadIdx.x);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int chunk = i * 256 + thread;
      const int row = chunk / 8, step = chunk % 8;
      const int query = first + row;
      const bool inside = query < 1024;
      char* const target = slot + row * 144 + step * 16;
      tgc_copy_async16(target, p.in2 + (inside ? batch * 32768 + query * 32 + step * 4 : 0), inside);
    }
  };

  auto fetch_g = [&](int first, char* slot) {
    const int thread = tgc_again(threadIdx.x);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int chunk = i * 256 + thread;
      const int row = chunk / 8, step = chunk % 8;
      const int query = first + row;
      const bool inside = query < 1024;
      char* const target = slot + row * 144 + step * 16;
      tgc_copy_async16(target, p.in3 + (inside ? batch * 32768 + query * 32 + step * 4 : 0), inside);
    }
  };
  auto fetch = [&](int first, int slot) {
    if (first < last_column) {
      fetch_q(first, ring + slot * 18944);
      fetch_g(first, ring + slot * 18944 + 9216);
      if (threadIdx.x < 64) {
        const int query = first + threadIdx.x < 1024 ? first + threadIdx.x : 1023;
        float* const sums = reinterpret_cast<float*>(ring + slot * 18944 + 18432) + threadIdx.x;
        tgc_copy_ahead(reinterpret_cast<tgc_vector<float, 1>*>(sums), p.in4, batch * 1024 + query);
        tgc_copy_ahead(reinterpret_cast<tgc_vector<float, 1>*>(sums + 64), p.in5, batch * 1024 + query);
      }
    }
    tgc_copy_commit();
  };
  fetch_k(key_first, smem);
  fetch_v(key_first, smem + 18432);
#pragma unroll 1
  for (int slot = 0; slot < 2; slot++) fetch(first_column + slot * 64, slot);
  int slot = 0, free_slot = 2;

  float by_key[1][4][4] = {};
  float by_value[1][4][4] = {};
#pragma unroll 1
  for (int column_first = first_column; column_first < last_column; column_first += 64) {
    tgc_copy_wait<3 - 2>();
    __syncthreads();  // the slot is full, and no warp reads the one before it any more
    fetch(column_first + 2 * 64, free_slot);
    const char* const columns_slot = ring + slot * 18944;
    slot = slot + 1 < 3 ? slot + 1 : 0;
    free_slot = free_slot + 1 < 3 ? free_slot + 1 : 0;
    if (column_first + 63 < key_first + row_first) continue;
    float score[1][8][4] = {};
#pragma unroll
    for (int step = 0; step < 4; step++) {
      unsigned a[1][4];
      tgc_ldmatrix_x4(a[0], smem + (row_first + lane % 16) * 144 + lane / 16 * 16
                                + step * 32);
#pragma unroll
      for (int j = 0; j < 8; j += 2) {
        unsigned b[4];
        tgc_ldmatrix_x4(b, columns_slot + (j * 8 + lane / 16 * 8 + lane % 8) * 144 + lane / 8 % 2 * 16
                               + step * 32);
        const unsigned left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
        tgc_mma_tf32(score[0][j], a[0], left);
        tgc_mma_tf32(score[0][j + 1], a[0], right);
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
    const float* const sums = reinterpret_cast<const float*>(columns_slot + 18432);
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
    for (int step = 0; step < 8; step++) {
      unsigned a[1][4];
#pragma unroll
      for (int q = 0; q < 4; q++) a[0][q] = tgc_tf32(score[0][step][q % 2 * 2 + q / 2]);
#pragma unroll
      for (int j = 0; j < 4; j += 2) {
        const char* const from = columns_slot + 9216 + (step * 8 + lane % 4 * 2) * 144 + lane / 4 * 8 + j * 32;
        const auto even = *reinterpret_cast<const tgc_vector<float, 2>*>(from);
        const auto odd = *reinterpret_cast<const tgc_vector<float, 2>*>(from + 144);
#pragma unroll
        for (int side = 0; side < 2; side++) {
          const unsigned b[2] = {__float_as_uint(even.at[side]), __float_as_uint(odd.at[side])};
          tgc_mma_tf32(by_value[0][j + side], a[0], b);
        }
      }
    }
    float share[1][8][4] = {};
#pragma unroll
    for (int step = 0; step < 4; step++) {
      unsigned a[1][4];
      tgc_ldmatrix_x4(a[0], smem + 18432 + (row_first + lane % 16) * 144 + lane / 16 * 16
                                + step * 32);
#pragma unroll
      for (int j = 0; j < 8; j += 2) {
        unsigned b[4];
        tgc_ldmatrix_x4(b, columns_slot + 9216 + (j * 8 + lane / 16 * 8 + lane % 8) * 144 + lane / 8 % 2 * 16
                               + step * 32);
        const unsigned left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
        tgc_mma_tf32(share[0][j], a[0], left);
        tgc_mma_tf32(share[0][j + 1], a[0], right);
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
    for (int step = 0; step < 8; step++) {
      unsigned a[1][4];
#pragma unroll
      for (int q = 0; q < 4; q++) a[0][q] = tgc_tf32(share[0][step][q % 2 * 2 + q / 2]);
#pragma unroll
      for (int j = 0; j < 4; j += 2) {
        const char* const from = columns_slot + (step * 8 + lane % 4 * 2) * 144 + lane / 4 * 8 + j * 32;
        const auto even = *reinterpret_cast<const tgc_vector<float, 2>*>(from);
        const auto odd = *reinterpret_cast<const tgc_vector<float, 2>*>(from + 144);
#pragma unroll
        for (int side = 0; side < 2; side++) {
          const unsigned b[2] = {__float_as_uint(even.at[side]), __float_as_uint(odd.at[side])};
          tgc_mma_tf32(by_key[0][j + side], a[0], b);
        }
      }
    }
  }

  tgc_copy_wait<0>();
  __syncthreads();
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int key = key_first + row_first + half * 8 + lane / 4;
    if (key < 1024) {
#pragma unroll
      for (int j = 0; j < 4; j += 2) {
        const auto sum = [&](int side, int q) { return by_key[0][j + side][half * 2 + q] * 0.125f; };
        tgc_store_vector(p.out0, batch * 32768 + key * 32 + j * 8 + lane % 4 * 4,
                         tgc_vector<float, 4>{{sum(0, 0), sum(1, 0), sum(0, 1), sum(1, 1)}});
      }
    }
  }

#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int key = key_first + row_first + half * 8 + lane / 4;
    if (key < 1024) {
#pragma unroll
      for (int j = 0; j < 4; j += 2) {
        const auto sum = [&](int side, int q) { return by_value[0][j + side][half * 2 + q] * 1.0f; };
        tgc_store_vector(p.out1, batch * 32768 + key * 32 + j * 8 + lane % 4 * 4,
                         tgc_vector<float, 4>{{sum(0, 0), sum(1, 0), sum(0, 1), sum(1, 1)}});
      }
    }
  }
}
