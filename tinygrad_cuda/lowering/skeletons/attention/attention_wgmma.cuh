// attention_wgmma: attention on the matrix units of sm_90a, where a warpgroup multiplies tiles in shared
// memory by wgmma m64nNk16. Two warpgroups of a block have 64 rows each. A tile lies there in blocks
// of 64 elements of its rows, with the 128-byte swizzle: so both products that read it, along its
// rows and across them, have descriptors. The second operand's factor comes from registers.
//
//   forward     scores of tile t and values of t - 1 are products at one time; powers of t are made
//               while the latter run
//   gradients   scores and g v^T of tile t begin together; powers are made while the latter run, and
//               the results of t are added while t + 1 begins
//
// Turn t copies tile t + stages - 2: products of t - 2 are complete behind its barrier.
//@ descriptors
const int group = threadIdx.x / 128;
const unsigned long long rows_0 =
    tgc_wgmma_descriptor(smem + group * 8192, @block_rows@, 1024, 8);
const unsigned long long columns_0 = tgc_wgmma_descriptor(ring, @block_columns@, 1024, 8);
const unsigned long long columns_1 =
    tgc_wgmma_descriptor(ring + @second@, @block_columns@, 1024, 8);
//@ descriptor
const unsigned long long rows_1 =
    tgc_wgmma_descriptor(smem + @rows@ + group * 8192, @block_rows@, 1024, 8);
//@ products
#pragma unroll
for (int step = 0; step < @steps@; step++)
  @wgmma@<@columns@>(*reinterpret_cast<float (*)[@columns@ / 2]>(&@sum@[0]),
                     @a@ + (step / 4 * @block_rows@ + step % 4 * 32) / 16,
                     @b@ + (step / 4 * @block_columns@ + step % 4 * 32) / 16, step > 0);
tgc_wgmma_commit();
//@ combine
#pragma unroll
for (int step = 0; step < @columns@ / 16; step++)
  @wgmma@_rs<@width@, true>(*reinterpret_cast<float (*)[@width@ / 2]>(&@sum@[0]), @factor@[step],
                            @b@, true);
tgc_wgmma_commit();
//@ packed
#pragma unroll
for (int step = 0; step < @columns@ / 16; step++)
#pragma unroll
  for (int q = 0; q < 4; q++) {
    const float* const pair = @score@[0][2 * step + q / 2] + q % 2 * 2;
    @factor@[step][q] = @pack@(@first@, @second@);
  }
//@ forward
unsigned share[@columns@ / 16][4];
{
  constexpr int column_first = 0, turn = 0;
  tgc_copy_wait<@stages@ - 2>();
  tgc_proxy_fence();
  __syncthreads();
  float score[1][@columns@ / 8][4];
  tgc_wgmma_fence();
  @begin_scores@
  tgc_wgmma_wait<0>();
  @scores@
  @shares@
}
#pragma unroll 1
for (int column_first = @columns@; column_first < last_column; column_first += @columns@) {
  tgc_copy_wait<@stages@ - 3>();
  tgc_proxy_fence();
  __syncthreads();  // the slot is full, and the products of the turn before the last are complete
  const int before = slot;
  slot = slot + 1 < @stages@ ? slot + 1 : 0;
  const int turn = slot * (@slot@ / 16);
  float score[1][@columns@ / 8][4];
  tgc_wgmma_fence();
  @begin_scores@
  @begin_values@
  fetch(column_first + (@stages@ - 2) * @columns@, free_slot);
  free_slot = free_slot + 1 < @stages@ ? free_slot + 1 : 0;
  tgc_wgmma_wait<1>();
  @scores@
  tgc_wgmma_wait<0>();
  if (moves) {
#pragma unroll
    for (int j = 0; j < @width@ / 8; j++)
#pragma unroll
      for (int q = 0; q < 4; q++) value[0][j][q] *= factor[q / 2];
  }
  @shares@
}
tgc_wgmma_fence();
@begin_last@
tgc_wgmma_wait<0>();
//@ gradients
#pragma unroll 1
for (int column_first = first_column; column_first < last_column; column_first += @columns@) {
  tgc_copy_wait<@stages@ - 3>();
  tgc_proxy_fence();
  __syncthreads();  // the slot is full, and the products of the turn before the last are complete
  const char* const columns_slot = ring + slot * @slot@;
  const int turn = slot * (@slot@ / 16);
  float score[1][@columns@ / 8][4], share[1][@columns@ / 8][4];
  tgc_wgmma_fence();
  @begin_scores@
  @begin_shares@
  fetch(column_first + (@stages@ - 2) * @columns@, free_slot);
  slot = slot + 1 < @stages@ ? slot + 1 : 0;
  free_slot = free_slot + 1 < @stages@ ? free_slot + 1 : 0;
  tgc_wgmma_wait<1>();
  @scores@
  @use@
}
tgc_wgmma_wait<0>();
//@ shares_of_rows
#pragma unroll
for (int j = 0; j < @columns@ / 8; j++)
#pragma unroll
  for (int q = 0; q < 4; q++) {
    constexpr int i = 0;
    score[i][j][q] = tgc_exp2_short(@power@);
  }
tgc_wgmma_wait<0>();
@dropped@
#pragma unroll
for (int j = 0; j < @columns@ / 8; j++)
#pragma unroll
  for (int q = 0; q < 4; q++) share[0][j][q] = score[0][j][q] * (share[0][j][q] - delta[0][q / 2]);
@packed@
tgc_wgmma_fence();
@combine@
tgc_wgmma_wait<0>();  // or else ptxas serializes the products (C7514)
//@ shares_of_columns
const float* const sums = reinterpret_cast<const float*>(columns_slot + @sums@);
#pragma unroll
for (int j = 0; j < @columns@ / 8; j++)
#pragma unroll
  for (int q = 0; q < 4; q++) {
    constexpr int i = 0;
    const int column = j * 8 + lane % 4 * 2 + q % 2;
    const bool hidden = sums[column] == -INFINITY@beyond_queries@;
    const float shift = hidden ? INFINITY : sums[column] * 1.44269504f;
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
//@ powers
bool grows = false;
#pragma unroll
for (int j = 0; j < @columns@ / 8; j++)
#pragma unroll
  for (int q = 0; q < 4; q++) grows |= score[0][j][q] > largest[0][q / 2] + @slack@;
const bool moves = __any_sync(0xffffffffu, grows);
float factor[2] = {1.0f, 1.0f};
if (moves) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    float top = largest[0][half];
#pragma unroll
    for (int j = 0; j < @columns@ / 8; j++)
      top = fmaxf(top, fmaxf(score[0][j][half * 2], score[0][j][half * 2 + 1]));
    top = fmaxf(top, tgc_shuffle_xor(top, 1));
    top = fmaxf(top, tgc_shuffle_xor(top, 2));
    const float moved = (largest[0][half] - top)@times@;
    if (top != largest[0][half]) factor[half] = tgc_exp2_short(moved);
    largest[0][half] = top;
    total[0][half] *= factor[half];
  }
}
#pragma unroll
for (int half = 0; half < 2; half++) {
  constexpr int i = 0;
  const float shift = largest[i][half] == -INFINITY ? 0.0f : largest[i][half]@times@;
#pragma unroll
  for (int j = 0; j < @columns@ / 8; j++)
#pragma unroll
    for (int q = half * 2; q < half * 2 + 2; q++) {
      score[i][j][q] = tgc_exp2_short(@power@);
      total[i][half] += score[i][j][q];
    }
}
