// attention_tma_gradients: the gradients of attention on sm_90a by TMA and wgmma m64nNk16.
// The products are those of attention_wgmma: by queries dq += ds k, by keys dv += p^T g and
// dk += ds^T q. Here two warpgroups multiply, with 64 rows each, and warps of a third one bring them
// what they read: one thread both operands' tiles of columns by TMA, and another warp the columns'
// logarithms, by base 2, and deltas. A slot's barrier counts both; no barrier of the whole block
// stands in the loop, so one warpgroup's powers run under the other's products.
// As many blocks as there are multiprocessors make tiles of rows, one after another, of causal scores
// those with most columns first.
// Bytes: rows and results once, columns once for each tile of rows, most of them from L2.
// Causal, on an H200, us by queries and by keys, in brackets those of attention_wgmma:
//   16 x 12 heads, 1024 x 64     104 (121)     149 (161)
//   8 x 12 heads, 1024 x 64       56 (69)       80 (90)
//   8 x 16 heads, 4096 x 128    1306 (1551)   2072 (1913), so by keys attention_wgmma is chosen
//@ body
unsigned long long* const full_rows = reinterpret_cast<unsigned long long*>(smem + @barriers@);
unsigned long long* const empty_rows = full_rows + 1;
unsigned long long* const full = full_rows + 2;
unsigned long long* const empty = full + @stages@;
char* const ring = smem + @bytes_rows@;
if (threadIdx.x == 0) {
  tgc_barrier_init(full_rows, 1);
  tgc_barrier_init(empty_rows, @readers@);
  for (int slot = 0; slot < @stages@; slot++) {
    tgc_barrier_init(full + slot, @writers@);
    tgc_barrier_init(empty + slot, @readers@);
  }
  tgc_barrier_fence();
}
__syncthreads();
if (threadIdx.x < 128) {
  tgc_registers_give<@few@>();
  const int lane = threadIdx.x % 32;
  int slot = 0;
  unsigned parity = 1, parity_rows = 1;
  if (threadIdx.x == 0) {
#pragma unroll 1
    for (int round = 0; round * @blocks@ < @tiles@; round++) {
      @tile@
      tgc_barrier_wait(empty_rows, parity_rows);
      parity_rows ^= 1;
      tgc_barrier_expect(full_rows, @bytes_rows@);
      @load_rows@
#pragma unroll 1
      for (int column_first = first_column; column_first < last_column; column_first += @columns@) {
        tgc_barrier_wait(empty + slot, parity);
        tgc_barrier_expect(full + slot, @bytes_columns@);
        @load_columns@
        @advance@
      }
    }
  }
  @sums@
} else {
  tgc_registers_take<@many@>();
  const int lane = threadIdx.x % 32, group = threadIdx.x / 128 - 1;
  const int row_first = (threadIdx.x / 32 - 4) * 16;
  const unsigned long long rows_0 =
      tgc_wgmma_descriptor(smem + group * 8192, @block_rows@, 1024, 8);
  const unsigned long long rows_1 =
      tgc_wgmma_descriptor(smem + @second_rows@ + group * 8192, @block_rows@, 1024, 8);
  const unsigned long long columns_0 = tgc_wgmma_descriptor(ring, @block_columns@, 1024, 8);
  const unsigned long long columns_1 =
      tgc_wgmma_descriptor(ring + @second_columns@, @block_columns@, 1024, 8);
  int slot = 0;
  unsigned parity = 0, parity_rows = 0;
#pragma unroll 1
  for (int round = 0; round * @blocks@ < @tiles@; round++) {
    @tile@
    @outer@
    @declare@
    tgc_barrier_wait(full_rows, parity_rows);
    parity_rows ^= 1;
    int before = -1;  // the slot that the products in flight read
#pragma unroll 1
    for (int column_first = first_column; column_first < last_column; column_first += @columns@) {
      tgc_barrier_wait(full + slot, parity);
      const char* const columns_slot = ring + slot * @slot@;
      const int turn = slot * (@slot@ / 16);
      float score[1][@columns@ / 8][4], share[1][@columns@ / 8][4];
      tgc_wgmma_fence();
      @begin_scores@
      @begin_shares@
      tgc_wgmma_wait<1>();
      if (lane == 0 && before >= 0) tgc_barrier_arrive(empty + before);
      @scores@
      @use@
      before = slot;
      @advance@
    }
    tgc_wgmma_wait<0>();
    if (lane == 0) {
      if (before >= 0) tgc_barrier_arrive(empty + before);
      tgc_barrier_arrive(empty_rows);
    }
    @results@
  }
}
//@ sums
else if (threadIdx.x >= 32 && threadIdx.x < 64) {
#pragma unroll 1
  for (int round = 0; round * @blocks@ < @tiles@; round++) {
    @tile@
    @outer@
#pragma unroll 1
    for (int column_first = first_column; column_first < last_column; column_first += @columns@) {
      tgc_barrier_wait(empty + slot, parity);
      float* const sums = reinterpret_cast<float*>(ring + slot * @slot@ + @offset@);
#pragma unroll
      for (int column = lane; column < @columns@; column += 32) {
        const int query = column_first + column;
        float shift = INFINITY, slope = 0.0f;  // of what is no query, or sees no key: powers of 0
        if (query < @extent@) {
          @load@
          shift = @logsumexp@ == -INFINITY ? INFINITY : @logsumexp@ * 1.44269504f;
          slope = @delta@;
        }
        sums[column] = shift;
        sums[@columns@ + column] = slope;
      }
      __syncwarp();
      if (lane == 0) tgc_barrier_arrive(full + slot);
      @advance@
    }
  }
}
//@ tile
const int index = @index@;
if (index >= @tiles@) break;
@position@
const int @rows@_first = tile * @tile_rows@;
const int first_column = @first_column@, last_column = @last_column@;
//@ shares_of_columns
const float* const sums = reinterpret_cast<const float*>(columns_slot + @sums@);
#pragma unroll
for (int j = 0; j < @columns@ / 8; j++)
#pragma unroll
  for (int q = 0; q < 4; q++) {
    constexpr int i = 0;
    const float shift = sums[j * 8 + lane % 4 * 2 + q % 2];
    score[i][j][q] = tgc_exp2_short(@power@);
  }
@dropped@
@packed_values@
tgc_wgmma_fence();
@combine_values@
tgc_wgmma_wait<1>();
#pragma unroll
for (int j = 0; j < @columns@ / 8; j++)
#pragma unroll
  for (int q = 0; q < 4; q++) {
    constexpr int i = 0;
    const float delta = sums[@columns@ + j * 8 + lane % 4 * 2 + q % 2];
    share[i][j][q] = @by_share@;
  }
@packed_keys@
tgc_wgmma_fence();
@combine_keys@
//@ results
#pragma unroll
for (int half = 0; half < 2; half++) {
  const int @rows@ = @rows@_first + row_first + half * 8 + lane / 4;
  const bool inside = @rows@ < @extent@;
  @stores@
}
