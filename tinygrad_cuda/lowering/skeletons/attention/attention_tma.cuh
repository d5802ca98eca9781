// attention_tma: the forward pass on sm_90a by TMA and wgmma m64nNk16: out = softmax(q k^T) v.
// A block has a warpgroup of which one thread copies, and two or three that have 64 queries each and
// multiply. As many blocks as there are multiprocessors make tiles of queries, one after another, of
// causal scores those with most keys first. Keys and values pass through rings of boxes with the
// 128-byte swizzle; each slot has a barrier that counts the bytes that came, and one that counts the
// warps that have read them. Tiles of keys come from the last to the first: only the first ones that
// a warpgroup sees are beyond the causal border, or behind the last key.
//
//   producer   q | keys[n] values[n] | keys[n - 1] values[n - 1] | ...
//   consumers  scores[n] | scores[n - 1] and values[n] are products at one time; powers of n - 1
//              are made while values[n] runs, and while another warpgroup multiplies
//
// Warpgroups begin their products in turn, by named barriers: one's powers run under another's
// products. Results go from registers to memory, so that the next tile's queries come meanwhile.
// Bytes: queries and results once, keys and values once for each tile of queries, most from L2.
// On an H200, bfloat16, causal: 8 x 16 heads of 4096 x 128 in 851 us, 646 TFLOP/s (attention_wgmma
// 1348, cuDNN 918); 16 x 12 heads of 1024 x 64 in 91 us, 283 TFLOP/s (95, 85).
//@ body
unsigned long long* const full_q = reinterpret_cast<unsigned long long*>(smem + @barriers@);
unsigned long long* const empty_q = full_q + 1;
unsigned long long* const full_k = full_q + 2;
unsigned long long* const full_v = full_k + @stages@;
unsigned long long* const empty_k = full_v + @stages@;
unsigned long long* const empty_v = empty_k + @stages@;
char* const ring_k = smem + @bytes_q@;
char* const ring_v = ring_k + @stages@ * @bytes_k@;
if (threadIdx.x == 0) {
  tgc_barrier_init(full_q, 1);
  tgc_barrier_init(empty_q, @readers@);
  for (int slot = 0; slot < @stages@; slot++) {
    tgc_barrier_init(full_k + slot, 1);
    tgc_barrier_init(full_v + slot, 1);
    tgc_barrier_init(empty_k + slot, @readers@);
    tgc_barrier_init(empty_v + slot, @readers@);
  }
  tgc_barrier_fence();
}
__syncthreads();
if (threadIdx.x < 128) {
  tgc_registers_give<@few@>();
  if (threadIdx.x == 0) {
    tgc_tma_prefetch(&@map_q@);
    tgc_tma_prefetch(&@map_k@);
    tgc_tma_prefetch(&@map_v@);
    int slot = 0;
    unsigned parity = 1, parity_q = 1;
#pragma unroll 1
    for (int round = 0; round * @blocks@ < @tiles@; round++) {
      @tile@
      tgc_barrier_wait(empty_q, parity_q);
      parity_q ^= 1;
      tgc_barrier_expect(full_q, @bytes_q@);
      {
        @load_q@
      }
#pragma unroll 1
      for (int key_first = first_column; key_first >= 0; key_first -= @columns@) {
        tgc_barrier_wait(empty_k + slot, parity);
        tgc_barrier_expect(full_k + slot, @bytes_k@);
        {
          @load_k@
        }
        tgc_barrier_wait(empty_v + slot, parity);
        tgc_barrier_expect(full_v + slot, @bytes_v@);
        {
          @load_v@
        }
        @advance@
      }
    }
  }
} else {
  tgc_registers_take<@many@>();
  const int lane = threadIdx.x % 32, group = threadIdx.x / 128 - 1;
  const int row_first = (threadIdx.x / 32 - 4) * 16;
  const unsigned long long rows_0 =
      tgc_wgmma_descriptor(smem + group * 8192, @block_rows@, 1024, 8);
  const unsigned long long columns_0 = tgc_wgmma_descriptor(ring_k, @block_columns@, 1024, 8);
  const unsigned long long columns_1 = tgc_wgmma_descriptor(ring_v, @block_columns@, 1024, 8);
  int slot = 0;
  unsigned parity = 0, parity_q = 0;
  if (group == @last_group@) tgc_named_barrier_arrive(1, 256);  // the first one multiplies first
#pragma unroll 1
  for (int round = 0; round * @blocks@ < @tiles@; round++) {
    @tile@
    @outer@
    float value[1][@width@ / 8][4] = {}, largest[1][2] = {{-INFINITY, -INFINITY}}, total[1][2] = {};
    unsigned share[@columns@ / 16][4];
    tgc_barrier_wait(full_q, parity_q);
    parity_q ^= 1;
    {
      const int column_first = first_column;
      tgc_barrier_wait(full_k + slot, parity);
      const int turn = slot * (@bytes_k@ / 16);
      float score[1][@columns@ / 8][4];
      tgc_wgmma_fence();
      @begin_scores@
      tgc_wgmma_wait<0>();
      if (lane == 0) tgc_barrier_arrive(empty_k + slot);
      @scores@
      @shares@
    }
#pragma unroll 1
    for (int column_first = first_column - @columns@; column_first >= 0; column_first -= @columns@) {
      const int before = slot;
      const unsigned parity_before = parity;
      @advance@
      const int turn = slot * (@bytes_k@ / 16);
      float score[1][@columns@ / 8][4];
      tgc_barrier_wait(full_k + slot, parity);
      tgc_barrier_wait(full_v + before, parity_before);
      tgc_named_barrier(1 + group, 256);  // its turn to multiply
      tgc_wgmma_fence();
      @begin_scores@
      @begin_values@
      tgc_named_barrier_arrive(group == @last_group@ ? 1 : 2 + group, 256);
      tgc_wgmma_wait<1>();
      if (lane == 0) tgc_barrier_arrive(empty_k + slot);
      @scores@
      tgc_wgmma_wait<0>();
      if (lane == 0) tgc_barrier_arrive(empty_v + before);
      if (moves) {
#pragma unroll
        for (int j = 0; j < @width@ / 8; j++)
#pragma unroll
          for (int q = 0; q < 4; q++) value[0][j][q] *= factor[q / 2];
      }
      @shares@
    }
    if (lane == 0) tgc_barrier_arrive(empty_q);
    tgc_barrier_wait(full_v + slot, parity);
    tgc_wgmma_fence();
    @begin_last@
    tgc_wgmma_wait<0>();
    if (lane == 0) tgc_barrier_arrive(empty_v + slot);
    @advance@
    @results@
  }
}
//@ tile
const int index = @index@;
if (index >= @tiles@) break;
@position@
const int query_first = tile * @tile_rows@;
const int first_column = (@last_column@ - 1) / @columns@ * @columns@;
//@ sections
// Heads whose keys and values the L2 cache holds; of these the tiles with most keys first.
const int section = index / @in_section@, rest = index % @in_section@;
const int heads = @batches@ - section * @heads@ < @heads@ ? @batches@ - section * @heads@ : @heads@;
const int tile = @own_tile@;
const int batch = section * @heads@ + rest % heads;
//@ rows
const int tile = index % @tiles_of_head@, batch = index / @tiles_of_head@;
//@ load
#pragma unroll
for (int box = 0; box < @boxes@; box++) {
  const int at[@axes@] = {box * 64, @at@};
  tgc_tma_load(@target@ + box * @block@, &@map@, @full@, at);
}
//@ advance
slot++;
if (slot == @stages@) {
  slot = 0;
  parity ^= 1;
}
//@ results
#pragma unroll
for (int half = 0; half < 2; half++) {
  constexpr int i = 0;
  float sum = total[i][half];
  sum += tgc_shuffle_xor(sum, 1);
  sum += tgc_shuffle_xor(sum, 2);
  const bool hidden = largest[i][half] == -INFINITY && !tgc_isnan(sum);
  const float part = hidden ? @nothing@ : @factor@ / sum;
  const int query = query_first + row_first + half * 8 + lane / 4;
  const bool inside = query < @extent@;
  @logarithm@
  @values@
}
//@ logarithm
if (lane % 4 == 0 && inside) {
  const float logarithm = (largest[i][half]@times@ + tgc_log2(sum)) * 0.69314718f;
  tgc_store(@pointer@, @index@, hidden ? -INFINITY : logarithm);
}
//@ values
#pragma unroll
for (int j = 0; j < @width@ / 8; j += 4) {
  tgc_vector<unsigned, 4> words;
#pragma unroll
  for (int q = 0; q < 4; q++)
    words.at[q] = @pack@(@sum@[0][j + q][half * 2] * @part@, @sum@[0][j + q][half * 2 + 1] * @part@);
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
    tgc_store_vector(@pointer@, @index@ + (j + lane % 4) * 8,
                     *reinterpret_cast<const tgc_vector<@storage@, 8>*>(&words));
}
