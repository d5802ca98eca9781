// attention, forward: 192 x 1024 x 1024, tiles of 128 x 128, 2 slots, 25769803776 FLOPs: attention output
//   output.
// Stores output (16, 12, 1024, 64) bfloat16; output (16, 12, 1024) float32.
// Grid 132 x 256 threads, 101449728 bytes moved at least.
TGC_STAGE(attention_d151f2bf90,
  tgc_tensor_map map_in0;
  tgc_tensor_map map_in1;
  tgc_tensor_map map_in2;
  float* out0;
  tgc_bfloat16* out1;
  const tgc_bfloat16* in0;
  const tgc_bfloat16* in1;
  const tgc_bfloat16* in2;
) {
  unsigned long long* const full_q = reinterpret_cast<unsigned long long*>(smem + 81920);
  unsigned long long* const empty_q = full_q + 1;
  unsigned long long* const full_k = full_q + 2;
  unsigned long long* const full_v = full_k + 2;
  unsigned long long* const empty_k = full_v + 2;
  unsigned long long* const empty_v = empty_k + 2;
  char* const ring_k = smem + 16384;
  char* const ring_v = ring_k + 2 * 16384;
  if (threadIdx.x == 0) {
    tgc_barrier_init(full_q, 1);
    tgc_barrier_init(empty_q, 8);
    for (int slot = 0; slot < 2; slot++) {
      tgc_barrier_init(full_k + slot, 1);
      tgc_barrier_init(full_v + slot, 1);
      tgc_barrier_init(empty_k + slot, 8);
      tgc_barrier_init(empty_v + slot, 8);
    }
    tgc_barrier_fence();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    tgc_registers_give<24>();
    if (threadIdx.x == 0) {
      tgc_tma_prefetch(&p.map_in0);
      tgc_tma_prefetch(&p.map_in1);
      tgc_tma_prefetch(&p.map_in2);
      int slot = 0;
      unsigned parity = 1, parity_q = 1;
#pragma unroll 1
      for (int round = 0; round * 132 < 1536; round++) {
        const int index = round * 132 + (round % 2 ? 131 - virtual_block : virtual_block);
        if (index >= 1536) break;
        // Heads whose keys and values the L2 cache holds; of these the tiles with most keys first.
        const int section = index / 800, rest = index % 800;
        const int heads = 192 - section * 100 < 100 ? 192 - section * 100 : 100;
        const int tile = 7 - rest / heads;
        const int batch = section * 100 + rest % heads;
        const int query_first = tile * 128;
        const int first_column = ((query_first + 128 < 1024 ? query_first + 128 : 1024) - 1) / 128 * 128;
        tgc_barrier_wait(empty_q, parity_q);
        parity_q ^= 1;
        tgc_barrier_expect(full_q, 16384);
        {
          const int at[3] = {0, query_first, batch};
          tgc_tma_load(smem, &p.map_in0, full_q, at);
        }
#pragma unroll 1
        for (int key_first = first_column; key_first >= 0; key_first -= 128) {
          tgc_barrier_wait(empty_k + slot, parity);
          tgc_barrier_expect(full_k + slot, 16384);
          {
            const int at[3] = {0, key_first, batch};
            tgc_tma_load(ring_k + slot * 16384, &p.map_in1, full_k + slot, at);
          }
          tgc_barrier_wait(empty_v + slot, parity);
          tgc_barrier_expect(full_v + slot, 16384);
          {
            const int at[3] = {0, key_first, batch};
            tgc_tma_load(ring_v + slot * 16384, &p.map_in2, full_v + slot, at);
          }
          slot++;
          if (slot == 2) {
            slot = 0;
            parity ^= 1;
          }
        }
      }
    }
  } else {
    tgc_registers_take<240>();
    const int lane = threadIdx.x % 32, group = threadIdx.x / 128 - 1;
    const int row_first = (threadIdx.x / 32 - 4) * 16;
    const unsigned long long rows_0 =
        tgc_wgmma_descriptor(smem + group * 8192, 16384, 1024, 8);
    const unsigned long long columns_0 = tgc_wgmma_descriptor(ring_k, 16384, 1024, 8);
    const unsigned long long columns_1 = tgc_wgmma_descriptor(ring_v, 16384, 1024, 8);
    int slot = 0;
    unsigned parity = 0, parity_q = 0;
    if (group == 1) tgc_named_barrier_arrive(1, 256);  // the first one multiplies first
#pragma unroll 1
    for (int round = 0; round * 132 < 1536; round++) {
      const int index = round * 132 + (round % 2 ? 131 - virtual_block : virtual_block);
      if (index >= 1536) break;
      // Heads whose keys and values the L2 cache holds; of these the tiles with most keys first.
      const int section = index / 800, rest = index % 800;
      const int heads = 192 - section * 100 < 100 ? 192 - section * 100 : 100;
      const int tile = 7 - rest / heads;
      const int batch = section * 100 + rest % heads;
      const int query_first = tile * 128;
      const int first_column = ((query_first + 128 < 1024 ? query_first + 128 : 1024) - 1) / 128 * 128;
      float value[1][8][4] = {}, largest[1][2] = {{-INFINITY, -INFINITY}}, total[1][2] = {};
      unsigned share[8][4];
      tgc_barrier_wait(full_q, parity_q);
      parity_q ^= 1;
      {
        const int column_first = first_column;
        tgc_barrier_wait(full_k + slot, parity);
        const int turn = slot * 1024;
        float score[1][16][4];
        tgc_wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; step++)
          tgc_wgmma_bf16<128>(*reinterpret_cast<float (*)[64]>(&score[0]),
                             rows_0 + (step / 4 * 16384 + step % 4 * 32) / 16,
                             columns_0 + turn + (step / 4 * 16384 + step % 4 * 32) / 16, step > 0);
        tgc_wgmma_commit();
        tgc_wgmma_wait<0>();
        if (lane == 0) tgc_barrier_arrive(empty_k + slot);
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
        bool grows = false;
#pragma unroll
        for (int j = 0; j < 16; j++)
#pragma unroll
          for (int q = 0; q < 4; q++) grows |= score[0][j][q] > largest[0][q / 2] + 44.3614195558365f;
        const bool moves = __any_sync(0xffffffffu, grows);
        float factor[2] = {1.0f, 1.0f};
        if (moves) {
#pragma unroll
          for (int half = 0; half < 2; half++) {
            float top = largest[0][half];
#pragma unroll
            for (int j = 0; j < 16; j++)
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
          for (int j = 0; j < 16; j++)
#pragma unroll
            for (int q = half * 2; q < half * 2 + 2; q++) {
              score[i][j][q] = tgc_exp2_short(tgc_fma(score[i][j][q], 0.18033688011112042f, -shift));
              total[i][half] += score[i][j][q];
            }
        }
#pragma unroll
        for (int step = 0; step < 8; step++)
#pragma unroll
          for (int q = 0; q < 4; q++) {
            const float* const pair = score[0][2 * step + q / 2] + q % 2 * 2;
            share[step][q] = tgc_pack_bf16(pair[0], pair[1]);
          }
      }
#pragma unroll 1
      for (int column_first = first_column - 128; column_first >= 0; column_first -= 128) {
        const int before = slot;
        const unsigned parity_before = parity;
        slot++;
        if (slot == 2) {
          slot = 0;
          parity ^= 1;
        }
        const int turn = slot * 1024;
        float score[1][16][4];
        tgc_barrier_wait(full_k + slot, parity);
        tgc_barrier_wait(full_v + before, parity_before);
        tgc_named_barrier(1 + group, 256);  // its turn to multiply
        tgc_wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; step++)
          tgc_wgmma_bf16<128>(*reinterpret_cast<float (*)[64]>(&score[0]),
                             rows_0 + (step / 4 * 16384 + step % 4 * 32) / 16,
                             columns_0 + turn + (step / 4 * 16384 + step % 4 * 32) / 16, step > 0);
        tgc_wgmma_commit();
#pragma unroll
        for (int step = 0; step < 8; step++)
          tgc_wgmma_bf16_rs<64, true>(*reinterpret_cast<float (*)[32]>(&value[0]), share[step],
                                    columns_1 + (before * 16384 + step * 2048) / 16, true);
        tgc_wgmma_commit();
        tgc_named_barrier_arrive(group == 1 ? 1 : 2 + group, 256);
        tgc_wgmma_wait<1>();
        if (lane == 0) tgc_barrier_arrive(empty_k + slot);
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
        bool grows = false;
#pragma unroll
        for (int j = 0; j < 16; j++)
#pragma unroll
          for (int q = 0; q < 4; q++) grows |= score[0][j][q] > largest[0][q / 2] + 44.3614195558365f;
        const bool moves = __any_sync(0xffffffffu, grows);
        float factor[2] = {1.0f, 1.0f};
        if (moves) {
#pragma unroll
          for (int half = 0; half < 2; half++) {
            float top = largest[0][half];
#pragma unroll
            for (int j = 0; j < 16; j++)
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
          for (int j = 0; j < 16; j++)
#pragma unroll
            for (int q = half * 2; q < half * 2 + 2; q++) {
              score[i][j][q] = tgc_exp2_short(tgc_fma(score[i][j][q], 0.18033688011112042f, -shift));
              total[i][half] += score[i][j][q];
            }
        }
        tgc_wgmma_wait<0>();
        if (lane == 0) tgc_barrier_arrive(empty_v + before);
        if (moves) {
#pragma unroll
          for (int j = 0; j < 8; j++)
#pragma unroll
            for (int q = 0; q < 4; q++) value[0][j][q] *= factor[q / 2];
        }
#pragma unroll
        for (int step = 0; step < 8; step++)
#pragma unroll
          for (int q = 0; q < 4; q++) {
            const float* const pair = score[0][2 * step + q / 2] + q % 2 * 2;
            share[step][q] = tgc_pack_bf16(pair[0], pair[1]);
          }
      }
      if (lane == 0) tgc_barrier_arrive(empty_q);
      tgc_barrier_wait(full_v + slot, parity);
      tgc_wgmma_fence();
#pragma unroll
      for (int step = 0; step < 8; step++)
        tgc_wgmma_bf16_rs<64, true>(*reinterpret_cast<float (*)[32]>(&value[0]), share[step],
                                  columns_1 + (slot * 16384 + step * 2048) / 16, true);
      tgc_wgmma_commit();
      tgc_wgmma_wait<0>();
      if (lane == 0) tgc_barrier_arrive(empty_v + slot);
      slot++;
      if (slot == 2) {
        slot = 0;
        parity ^= 1;
      }
#pragma unroll
      for (int half = 0; half < 2; half++) {
        constexpr int i = 0;
        float sum = total[i][half];
        sum += tgc_shuffle_xor(sum, 1);
        sum += tgc_shuffle_xor(sum, 2);
        const bool hidden = largest[i][half] == -INFINITY && !tgc_isnan(sum);
        const float part = hidden ? NAN : 1.0f / sum;
        const int query = query_first + row_first + half * 8 + lane / 4;
        const bool inside = query < 1024;
        if (lane % 4 == 0 && inside) {
          const float logarithm = (largest[i][half] * 0.18033688011112042f + tgc_log2(sum)) * 0.69314718f;
          tgc_store(p.out0, batch * 1024 + query, hidden ? -INFINITY : logarithm);
        }
#pragma unroll
        for (int j = 0; j < 8; j += 4) {
          tgc_vector<unsigned, 4> words;
#pragma unroll
          for (int q = 0; q < 4; q++)
            words.at[q] = tgc_pack_bf16(value[0][j + q][half * 2] * part, value[0][j + q][half * 2 + 1] * part);
          // Lane q of four receives all words q of theirs: 16 bytes of a row.
#pragma unroll
          for (int step = 1; step < 4; step *= 2) {
            const bool upper = lane & step;
#pragma unroll
            for (int q = 0; q < 4; q++) {
              if (q & step) continue;
              const unsigned low = words.at[q], high = words.at[q + step];
              const unsigned other = tgc_shuffle_xor(upper ? low : high, step);
              words.at[q] = upper ? other : low;
              words.at[q + step] = upper ? high : other;
            }
          }
          if (inside)
            tgc_store_vector(p.out1, batch * 65536 + query * 64 + (j + lane % 4) * 8,
                             *reinterpret_cast<const tgc_vector<tgc_bfloat16, 8>*>(&words));
        }
      }
    }
  }
}

// row_reduce, 196608 rows of 64, 2 threads each, 1 loops, in registers: cast mul sum.
// Stores sum (16, 12, 1024, 1) float32.
// Grid 1536 x 256 threads, 51118080 bytes moved at least.
TGC_STAGE(row_reduce_sum_mul_15dd8af10f,
  const tgc_bfloat16* in0;
  const tgc_bfloat16* in1;
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

// attention, queries: 192 x 1024 x 1024, tiles of 128 x 64, 4 slots, 64424509440 FLOPs: attention_backward
//   output output output.
// Stores output (16, 12, 1024, 64) bfloat16; output (16, 12, 1024, 64) bfloat16; output (16, 12, 1024, 64)
//   bfloat16.
// Grid 132 x 256 threads, 127401984 bytes moved at least.
TGC_STAGE(attention_attention_backward_queries_fc611f4847,
  tgc_tensor_map map_in2;
  tgc_tensor_map map_in3;
  tgc_tensor_map map_in4;
  tgc_tensor_map map_in5;
  const float* in0;
  const float* in1;
  tgc_bfloat16* out0;
  const tgc_bfloat16* in2;
  const tgc_bfloat16* in3;
  const tgc_bfloat16* in4;
  const tgc_bfloat16* in5;
) {
  unsigned long long* const full_rows = reinterpret_cast<unsigned long long*>(smem + 98304);
  unsigned long long* const empty_rows = full_rows + 1;
  unsigned long long* const full = full_rows + 2;
  unsigned long long* const empty = full + 4;
  char* const ring = smem + 32768;
  if (threadIdx.x == 0) {
    tgc_barrier_init(full_rows, 1);
    tgc_barrier_init(empty_rows, 8);
    for (int slot = 0; slot < 4; slot++) {
      tgc_barrier_init(full + slot, 1);
      tgc_barrier_init(empty + slot, 8);
    }
    tgc_barrier_fence();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    tgc_registers_give<24>();
    const int lane = threadIdx.x % 32;
    int slot = 0;
    unsigned parity = 1, parity_rows = 1;
    if (threadIdx.x == 0) {
#pragma unroll 1
      for (int round = 0; round * 132 < 1536; round++) {
        const int index = round * 132 + (round % 2 ? 131 - virtual_block : virtual_block);
        if (index >= 1536) break;
        // Heads whose keys and values the L2 cache holds; of these the tiles with most keys first.
        const int section = index / 800, rest = index % 800;
        const int heads = 192 - section * 100 < 100 ? 192 - section * 100 : 100;
        const int tile = 7 - rest / heads;
        const int batch = section * 100 + rest % heads;
        const int query_first = tile * 128;
        const int first_column = 0, last_column = query_first + 128 < 1024 ? query_first + 128 : 1024;
        tgc_barrier_wait(empty_rows, parity_rows);
        parity_rows ^= 1;
        tgc_barrier_expect(full_rows, 32768);
        {
        const int at[3] = {0, query_first, batch};
        tgc_tma_load(smem, &p.map_in2, full_rows, at);
        }
        {
        const int at[3] = {0, query_first, batch};
        tgc_tma_load(smem + 16384, &p.map_in5, full_rows, at);
        }
#pragma unroll 1
        for (int column_first = first_column; column_first < last_column; column_first += 64) {
          tgc_barrier_wait(empty + slot, parity);
          tgc_barrier_expect(full + slot, 16384);
          {
          const int at[3] = {0, column_first, batch};
          tgc_tma_load(ring + slot * 16384, &p.map_in3, full + slot, at);
          }
          {
          const int at[3] = {0, column_first, batch};
          tgc_tma_load(ring + slot * 16384 + 8192, &p.map_in4, full + slot, at);
          }
          slot++;
          if (slot == 4) {
            slot = 0;
            parity ^= 1;
          }
        }
      }
    }
  } else {
    tgc_registers_take<240>();
    const int lane = threadIdx.x % 32, group = threadIdx.x / 128 - 1;
    const int row_first = (threadIdx.x / 32 - 4) * 16;
    const unsigned long long rows_0 =
        tgc_wgmma_descriptor(smem + group * 8192, 16384, 1024, 8);
    const unsigned long long rows_1 =
        tgc_wgmma_descriptor(smem + 16384 + group * 8192, 16384, 1024, 8);
    const unsigned long long columns_0 = tgc_wgmma_descriptor(ring, 8192, 1024, 8);
    const unsigned long long columns_1 =
        tgc_wgmma_descriptor(ring + 8192, 8192, 1024, 8);
    int slot = 0;
    unsigned parity = 0, parity_rows = 0;
#pragma unroll 1
    for (int round = 0; round * 132 < 1536; round++) {
      const int index = round * 132 + (round % 2 ? 131 - virtual_block : virtual_block);
      if (index >= 1536) break;
      // Heads whose keys and values the L2 cache holds; of these the tiles with most keys first.
      const int section = index / 800, rest = index % 800;
      const int heads = 192 - section * 100 < 100 ? 192 - section * 100 : 100;
      const int tile = 7 - rest / heads;
      const int batch = section * 100 + rest % heads;
      const int query_first = tile * 128;
      const int first_column = 0, last_column = query_first + 128 < 1024 ? query_first + 128 : 1024;
      float by_query[1][8][4] = {};
      unsigned moved[4][4];
      float shift[1][2], delta[1][2];
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int query = query_first + row_first + half * 8 + lane / 4;
        shift[0][half] = INFINITY;
        delta[0][half] = 0.0f;
        if (query < 1024) {
          const float in0 = tgc_load(p.in0, batch * 1024 + query);
          const float in1 = tgc_load(p.in1, batch * 1024 + query);
          shift[0][half] = in0 == -INFINITY ? INFINITY : in0 * 1.44269504f;
          delta[0][half] = in1;
        }
      }
      tgc_barrier_wait(full_rows, parity_rows);
      parity_rows ^= 1;
      int before = -1;  // the slot that the products in flight read
#pragma unroll 1
      for (int column_first = first_column; column_first < last_column; column_first += 64) {
        tgc_barrier_wait(full + slot, parity);
        const char* const columns_slot = ring + slot * 16384;
        const int turn = slot * 1024;
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
        tgc_wgmma_wait<1>();
        if (lane == 0 && before >= 0) tgc_barrier_arrive(empty + before);
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
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
          for (int q = 0; q < 4; q++) {
            constexpr int i = 0;
            score[i][j][q] = tgc_exp2_short(tgc_fma(score[i][j][q], 0.18033688011112042f, -shift[i][q / 2]));
          }
        tgc_wgmma_wait<0>();
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
          for (int q = 0; q < 4; q++) share[0][j][q] = score[0][j][q] * (share[0][j][q] - delta[0][q / 2]);
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
          tgc_wgmma_bf16_rs<64, true>(*reinterpret_cast<float (*)[32]>(&by_query[0]), moved[step],
                                    columns_0 + turn + step * 128, true);
        tgc_wgmma_commit();
        tgc_wgmma_wait<0>();  // or else ptxas serializes the products (C7514)
        before = slot;
        slot++;
        if (slot == 4) {
          slot = 0;
          parity ^= 1;
        }
      }
      tgc_wgmma_wait<0>();
      if (lane == 0) {
        if (before >= 0) tgc_barrier_arrive(empty + before);
        tgc_barrier_arrive(empty_rows);
      }
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int query = query_first + row_first + half * 8 + lane / 4;
        const bool inside = query < 1024;
        {
#pragma unroll
        for (int j = 0; j < 8; j += 4) {
          tgc_vector<unsigned, 4> words;
#pragma unroll
          for (int q = 0; q < 4; q++)
            words.at[q] = tgc_pack_bf16(by_query[0][j + q][half * 2] * 0.125f,
                by_query[0][j + q][half * 2 + 1] * 0.125f);
          // Lane q of four receives all words q of theirs: 16 bytes of a row.
#pragma unroll
          for (int step = 1; step < 4; step *= 2) {
            const bool upper = lane & step;
#pragma unroll
            for (int q = 0; q < 4; q++) {
              if (q & step) continue;
              const unsigned low = words.at[q], high = words.at[q + step];
              const unsigned other = tgc_shuffle_xor(upper ? low : high, step);
              words.at[q] = upper ? other : low;
              words.at[q + step] = upper ? high : other;
            }
          }
          if (inside)
            tgc_store_vector(p.out0, batch * 65536 + query * 64 + (j + lane % 4) * 8,
                             *reinterpret_cast<const tgc_vector<tgc_bfloat16, 8>*>(&words));
        }
        }
      }
    }
  }
}

// attention, keys: 192 x 1024 x 1024, tiles of 128 x 64, 4 slots, 64424509440 FLOPs: attention_backward output
//   output output.
// Stores output (16, 12, 1024, 64) bfloat16; output (16, 12, 1024, 64) bfloat16; output (16, 12, 1024, 64)
//   bfloat16.
// Grid 132 x 256 threads, 152567808 bytes moved at least.
TGC_STAGE(attention_attention_backward_keys_8b29b9f28a,
  tgc_tensor_map map_in2;
  tgc_tensor_map map_in3;
  tgc_tensor_map map_in4;
  tgc_tensor_map map_in5;
  tgc_bfloat16* out0;
  tgc_bfloat16* out1;
  const float* in0;
  const float* in1;
  const tgc_bfloat16* in2;
  const tgc_bfloat16* in3;
  const tgc_bfloat16* in4;
  const tgc_bfloat16* in5;
) {
  unsigned long long* const full_rows = reinterpret_cast<unsigned long long*>(smem + 102400);
  unsigned long long* const empty_rows = full_rows + 1;
  unsigned long long* const full = full_rows + 2;
  unsigned long long* const empty = full + 4;
  char* const ring = smem + 32768;
  if (threadIdx.x == 0) {
    tgc_barrier_init(full_rows, 1);
    tgc_barrier_init(empty_rows, 8);
    for (int slot = 0; slot < 4; slot++) {
      tgc_barrier_init(full + slot, 2);
      tgc_barrier_init(empty + slot, 8);
    }
    tgc_barrier_fence();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    tgc_registers_give<24>();
    const int lane = threadIdx.x % 32;
    int slot = 0;
    unsigned parity = 1, parity_rows = 1;
    if (threadIdx.x == 0) {
#pragma unroll 1
      for (int round = 0; round * 132 < 1536; round++) {
        const int index = round * 132 + (round % 2 ? 131 - virtual_block : virtual_block);
        if (index >= 1536) break;
        // Heads whose keys and values the L2 cache holds; of these the tiles with most keys first.
        const int section = index / 800, rest = index % 800;
        const int heads = 192 - section * 100 < 100 ? 192 - section * 100 : 100;
        const int tile = rest / heads;
        const int batch = section * 100 + rest % heads;
        const int key_first = tile * 128;
        const int first_column = key_first / 64 * 64, last_column = 1024;
        tgc_barrier_wait(empty_rows, parity_rows);
        parity_rows ^= 1;
        tgc_barrier_expect(full_rows, 32768);
        {
        const int at[3] = {0, key_first, batch};
        tgc_tma_load(smem, &p.map_in3, full_rows, at);
        }
        {
        const int at[3] = {0, key_first, batch};
        tgc_tma_load(smem + 16384, &p.map_in4, full_rows, at);
        }
#pragma unroll 1
        for (int column_first = first_column; column_first < last_column; column_first += 64) {
          tgc_barrier_wait(empty + slot, parity);
          tgc_barrier_expect(full + slot, 16384);
          {
          const int at[3] = {0, column_first, batch};
          tgc_tma_load(ring + slot * 17408, &p.map_in2, full + slot, at);
          }
          {
          const int at[3] = {0, column_first, batch};
          tgc_tma_load(ring + slot * 17408 + 8192, &p.map_in5, full + slot, at);
          }
          slot++;
          if (slot == 4) {
            slot = 0;
            parity ^= 1;
          }
        }
      }
    }
    else if (threadIdx.x >= 32 && threadIdx.x < 64) {
#pragma unroll 1
      for (int round = 0; round * 132 < 1536; round++) {
        const int index = round * 132 + (round % 2 ? 131 - virtual_block : virtual_block);
        if (index >= 1536) break;
        // Heads whose keys and values the L2 cache holds; of these the tiles with most keys first.
        const int section = index / 800, rest = index % 800;
        const int heads = 192 - section * 100 < 100 ? 192 - section * 100 : 100;
        const int tile = rest / heads;
        const int batch = section * 100 + rest % heads;
        const int key_first = tile * 128;
        const int first_column = key_first / 64 * 64, last_column = 1024;
#pragma unroll 1
        for (int column_first = first_column; column_first < last_column; column_first += 64) {
          tgc_barrier_wait(empty + slot, parity);
          float* const sums = reinterpret_cast<float*>(ring + slot * 17408 + 16896);
#pragma unroll
          for (int column = lane; column < 64; column += 32) {
            const int query = column_first + column;
            float shift = INFINITY, slope = 0.0f;  // of what is no query, or sees no key: powers of 0
            if (query < 1024) {
              const float in0 = tgc_load(p.in0, batch * 1024 + query);
              const float in1 = tgc_load(p.in1, batch * 1024 + query);
              shift = in0 == -INFINITY ? INFINITY : in0 * 1.44269504f;
              slope = in1;
            }
            sums[column] = shift;
            sums[64 + column] = slope;
          }
          __syncwarp();
          if (lane == 0) tgc_barrier_arrive(full + slot);
          slot++;
          if (slot == 4) {
            slot = 0;
            parity ^= 1;
          }
        }
      }
    }
  } else {
    tgc_registers_take<240>();
    const int lane = threadIdx.x % 32, group = threadIdx.x / 128 - 1;
    const int row_first = (threadIdx.x / 32 - 4) * 16;
    const unsigned long long rows_0 =
        tgc_wgmma_descriptor(smem + group * 8192, 16384, 1024, 8);
    const unsigned long long rows_1 =
        tgc_wgmma_descriptor(smem + 16384 + group * 8192, 16384, 1024, 8);
    const unsigned long long columns_0 = tgc_wgmma_descriptor(ring, 8192, 1024, 8);
    const unsigned long long columns_1 =
        tgc_wgmma_descriptor(ring + 8192, 8192, 1024, 8);
    int slot = 0;
    unsigned parity = 0, parity_rows = 0;
#pragma unroll 1
    for (int round = 0; round * 132 < 1536; round++) {
      const int index = round * 132 + (round % 2 ? 131 - virtual_block : virtual_block);
      if (index >= 1536) break;
      // Heads whose keys and values the L2 cache holds; of these the tiles with most keys first.
      const int section = index / 800, rest = index % 800;
      const int heads = 192 - section * 100 < 100 ? 192 - section * 100 : 100;
      const int tile = rest / heads;
      const int batch = section * 100 + rest % heads;
      const int key_first = tile * 128;
      const int first_column = key_first / 64 * 64, last_column = 1024;
      float by_key[1][8][4] = {}, by_value[1][8][4] = {};
      unsigned weight[4][4], moved[4][4];
      tgc_barrier_wait(full_rows, parity_rows);
      parity_rows ^= 1;
      int before = -1;  // the slot that the products in flight read
#pragma unroll 1
      for (int column_first = first_column; column_first < last_column; column_first += 64) {
        tgc_barrier_wait(full + slot, parity);
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
        tgc_wgmma_wait<1>();
        if (lane == 0 && before >= 0) tgc_barrier_arrive(empty + before);
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
            const float shift = sums[j * 8 + lane % 4 * 2 + q % 2];
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
        before = slot;
        slot++;
        if (slot == 4) {
          slot = 0;
          parity ^= 1;
        }
      }
      tgc_wgmma_wait<0>();
      if (lane == 0) {
        if (before >= 0) tgc_barrier_arrive(empty + before);
        tgc_barrier_arrive(empty_rows);
      }
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int key = key_first + row_first + half * 8 + lane / 4;
        const bool inside = key < 1024;
        {
#pragma unroll
        for (int j = 0; j < 8; j += 4) {
          tgc_vector<unsigned, 4> words;
#pragma unroll
          for (int q = 0; q < 4; q++)
            words.at[q] = tgc_pack_bf16(by_key[0][j + q][half * 2] * 0.125f,
                by_key[0][j + q][half * 2 + 1] * 0.125f);
          // Lane q of four receives all words q of theirs: 16 bytes of a row.
#pragma unroll
          for (int step = 1; step < 4; step *= 2) {
            const bool upper = lane & step;
#pragma unroll
            for (int q = 0; q < 4; q++) {
              if (q & step) continue;
              const unsigned low = words.at[q], high = words.at[q + step];
              const unsigned other = tgc_shuffle_xor(upper ? low : high, step);
              words.at[q] = upper ? other : low;
              words.at[q + step] = upper ? high : other;
            }
          }
          if (inside)
            tgc_store_vector(p.out0, batch * 65536 + key * 64 + (j + lane % 4) * 8,
                             *reinterpret_cast<const tgc_vector<tgc_bfloat16, 8>*>(&words));
        }
        }
        {
#pragma unroll
        for (int j = 0; j < 8; j += 4) {
          tgc_vector<unsigned, 4> words;
#pragma unroll
          for (int q = 0; q < 4; q++)
            words.at[q] = tgc_pack_bf16(by_value[0][j + q][half * 2] * 1.0f,
                by_value[0][j + q][half * 2 + 1] * 1.0f);
          // Lane q of four receives all words q of theirs: 16 bytes of a row.
#pragma unroll
          for (int step = 1; step < 4; step *= 2) {
            const bool upper = lane & step;
#pragma unroll
            for (int q = 0; q < 4; q++) {
              if (q & step) continue;
              const unsigned low = words.at[q], high = words.at[q + step];
              const unsigned other = tgc_shuffle_xor(upper ? low : high, step);
              words.at[q] = upper ? other : low;
              words.at[q + step] = upper ? high : other;
            }
          }
          if (inside)
            tgc_store_vector(p.out1, batch * 65536 + key * 64 + (j + lane % 4) * 8,
                             *reinterpret_cast<const tgc_vector<tgc_bfloat16, 8>*>(&words));
        }
        }
      }
    }
  }
}
