// attention: softmax(q k^T * scale, masked) v and its gradients on matrix units (mma.sync m16n8k16),
// without the matrix of scores in memory (Dao et al., 2022 and 2023).
//
// A block of 8 warps holds a tile of rows, 16 or 32 of them a warp, in shared memory, and walks over
// tiles of columns, which pass through a ring of `stages` slots of 16-byte asynchronous copies. Rows
// are queries and columns keys; of the gradients by keys and values it is the other way round. A
// warp's scores stay in registers: the accumulators of one product, rounded and packed, are the
// first operand of the next. Rows in shared memory are padded by 16 bytes, so that eight of them
// begin in different banks. Tiles beyond the causal border are skipped.
//
//   forward    out += p v with p = 2^(score - largest), in float32. `largest` of a row lags behind
//              its scores by 8 at most: values are scaled again only when it moves, for few tiles.
//              Scores are those of base 2; where nothing is added, powers take the scale along.
//   queries    dq += ds k    ds = p * (g v^T - delta), p from the rows' logarithms
//   keys       dv += p^T g   dk += ds^T q
//
// The gradients make p and g v^T again in both kernels, 7 products instead of 5: so each result has
// one writer, sums have one order, and nothing is added atomically.
//@ operand
auto fetch_@name@ = [&](int first, char* slot) {
  const int thread = tgc_again(threadIdx.x);
#pragma unroll
  for (int i = 0; i < @loads@; i++) {
    const int chunk = i * @threads@ + thread;
    @skip@
    const int row = chunk / @chunks@, step = chunk % @chunks@;
    const int @position@ = first + row;
    const bool inside = @in_bounds@;
    char* const target = slot + @target@;
    @copy@
  }
};
//@ copied
tgc_copy_async16(target, @pointer@ + (inside ? @index@ : 0), inside);
//@ evaluated
float values[@vector@] = {};
if (inside) {
  @load@
#pragma unroll
  for (int v = 0; v < @vector@; v++) {
    @map@
    values[v] = @value@;
  }
}
*reinterpret_cast<tgc_vector<@storage@, @vector@>*>(target) = tgc_rounded<@storage@>(values);
//@ products
#pragma unroll
for (int step = 0; step < @steps@; step++) {
  unsigned a[@groups@][4];
#pragma unroll
  for (int i = 0; i < @groups@; i++)
    tgc_ldmatrix_x4(a[i], @a@ + (row_first + i * 16 + lane % 16) * @stride@ + lane / 16 * 16
                              + step * 32);
#pragma unroll
  for (int j = 0; j < @columns@ / 8; j += 2) {
    unsigned b[4];
    tgc_ldmatrix_x4(b, @b@ + (j * 8 + lane / 16 * 8 + lane % 8) * @stride_b@ + lane / 8 % 2 * 16
                           + step * 32);
    const unsigned left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
#pragma unroll
    for (int i = 0; i < @groups@; i++) {
      @multiply@(@sum@[i][j], a[i], left);
      @multiply@(@sum@[i][j + 1], a[i], right);
    }
  }
}
//@ combine
#pragma unroll
for (int step = 0; step < @columns@ / 16; step++) {
  unsigned a[@groups@][4];
#pragma unroll
  for (int i = 0; i < @groups@; i++)
#pragma unroll
    for (int q = 0; q < 4; q++) {
      const float* const pair = @factor@[i][2 * step + q / 2] + q % 2 * 2;
      a[i][q] = @pack@(@first@, @second@);
    }
#pragma unroll
  for (int j = 0; j < @width@ / 8; j += 2) {
    unsigned b[4];
    tgc_ldmatrix_x4_trans(b, @b@ + (step * 16 + lane % 16) * @stride@ + lane / 16 * 16 + j * 16);
    const unsigned left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
#pragma unroll
    for (int i = 0; i < @groups@; i++) {
      @multiply@(@sum@[i][j], a[i], left);
      @multiply@(@sum@[i][j + 1], a[i], right);
    }
  }
}
//@ scale
#pragma unroll
for (int i = 0; i < @groups@; i++)
#pragma unroll
  for (int j = 0; j < @columns@ / 8; j++)
#pragma unroll
    for (int q = 0; q < 4; q++) score[i][j][q] *= @factor@;
//@ border
if (@border@) {
  @mask@
}
//@ mask
#pragma unroll
for (int i = 0; i < @groups@; i++)
#pragma unroll
  for (int j = 0; j < @columns@ / 8; j++)
#pragma unroll
    for (int q = 0; q < 4; q++) {
      const int @row@ = @row_tile@ + row_first + i * 16 + q / 2 * 8 + lane / 4;
      const int @column@ = @column_tile@ + j * 8 + lane % 4 * 2 + q % 2;
      bool seen = @in_bounds@;
      @evaluate@
      if (!seen) score[i][j][q] = -INFINITY;
    }
//@ masked
if (seen) {
  @load@
  @apply@
}
//@ dropped
#pragma unroll
for (int i = 0; i < @groups@; i++)
#pragma unroll
  for (int j = 0; j < @columns@ / 8; j++)
#pragma unroll
    for (int q = 0; q < 4; q++) {
      const int @row@ = @row_tile@ + row_first + i * 16 + q / 2 * 8 + lane / 4;
      const int @column@ = @column_tile@ + j * 8 + lane % 4 * 2 + q % 2;
      bool keep = false;
      if (@in_bounds@) {
        @load@
        keep = @value@;
      }
      @apply@
    }
//@ block
const int tile = @tile@;
const int batch = virtual_block / @tiles@;
const int @rows@_first = tile * @tile_rows@;
@outer@
const int lane = threadIdx.x % 32, row_first = threadIdx.x / 32 * @warp_rows@;
const int first_column = @first_column@, last_column = @last_column@;
char* const ring = smem + @row_bytes@;
@operands@
auto fetch = [&](int first, int slot) {
  if (first < last_column) {
    @fetch_columns@
  }
  tgc_copy_commit();
};
@fetch_rows@
#pragma unroll 1
for (int slot = 0; slot < @ahead@; slot++) fetch(first_column + slot * @columns@, slot);
int slot = 0, free_slot = @ahead@;
//@ loop
#pragma unroll 1
for (int column_first = first_column; column_first < last_column; column_first += @columns@) {
  tgc_copy_wait<@stages@ - 2>();
  __syncthreads();  // the slot is full, and no warp reads the one before it any more
  fetch(column_first + (@stages@ - 1) * @columns@, free_slot);
  const char* const columns_slot = ring + slot * @slot@;
  slot = slot + 1 < @stages@ ? slot + 1 : 0;
  free_slot = free_slot + 1 < @stages@ ? free_slot + 1 : 0;
  @beyond@
  float score[@groups@][@columns@ / 8][4] = {};
  @scores@
  @scale@
  @mask@
  @use@
}
//@ forward
float value[@groups@][@width@ / 8][4] = {}, largest[@groups@][2], total[@groups@][2] = {};
#pragma unroll
for (int i = 0; i < @groups@; i++) largest[i][0] = largest[i][1] = -INFINITY;
//@ online
bool grows = false;
#pragma unroll
for (int i = 0; i < @groups@; i++)
#pragma unroll
  for (int j = 0; j < @columns@ / 8; j++)
#pragma unroll
    for (int q = 0; q < 4; q++) grows |= score[i][j][q] > largest[i][q / 2] + @slack@;
if (__any_sync(0xffffffffu, grows)) {
#pragma unroll
  for (int i = 0; i < @groups@; i++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float top = largest[i][half];
#pragma unroll
      for (int j = 0; j < @columns@ / 8; j++)
        top = fmaxf(top, fmaxf(score[i][j][half * 2], score[i][j][half * 2 + 1]));
      top = fmaxf(top, tgc_shuffle_xor(top, 1));
      top = fmaxf(top, tgc_shuffle_xor(top, 2));
      const float moved = (largest[i][half] - top)@times@;
      const float factor = top == largest[i][half] ? 1.0f : @exp@(moved);
      largest[i][half] = top;
      total[i][half] *= factor;
#pragma unroll
      for (int j = 0; j < @width@ / 8; j++) {
        value[i][j][half * 2] *= factor;
        value[i][j][half * 2 + 1] *= factor;
      }
    }
}
#pragma unroll
for (int i = 0; i < @groups@; i++)
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const float shift = largest[i][half] == -INFINITY ? 0.0f : largest[i][half]@times@;
#pragma unroll
    for (int j = 0; j < @columns@ / 8; j++)
#pragma unroll
      for (int q = half * 2; q < half * 2 + 2; q++) {
        score[i][j][q] = @exp@(@power@);
        total[i][half] += score[i][j][q];
      }
  }
@dropped@
@combine@
//@ values
tgc_copy_wait<0>();
#pragma unroll
for (int i = 0; i < @groups@; i++)
#pragma unroll
  for (int half = 0; half < 2; half++) {
    float sum = total[i][half];
    sum += tgc_shuffle_xor(sum, 1);
    sum += tgc_shuffle_xor(sum, 2);
    const bool hidden = largest[i][half] == -INFINITY && !tgc_isnan(sum);
    const float share = hidden ? @nothing@ : @factor@ / sum;
#pragma unroll
    for (int j = 0; j < @width@ / 8; j++) {
      value[i][j][half * 2] *= share;
      value[i][j][half * 2 + 1] *= share;
    }
    @store_rows@
  }
//@ store_rows
const int query = query_first + row_first + i * 16 + half * 8 + lane / 4;
if (lane % 4 == 0 && query < @extent@) {
  const float logarithm = @logarithm@;
  tgc_store(@pointer@, @index@, hidden ? -INFINITY : logarithm);
}
//@ rows_of_query
float shift[@groups@][2], delta[@groups@][2];
#pragma unroll
for (int i = 0; i < @groups@; i++)
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int query = query_first + row_first + i * 16 + half * 8 + lane / 4;
    shift[i][half] = INFINITY;
    delta[i][half] = 0.0f;
    if (query < @extent@) {
      @load@
      shift[i][half] = @logsumexp@ == -INFINITY ? INFINITY : @logsumexp@@of_base_e@;
      delta[i][half] = @delta@;
    }
  }
//@ fetch_sums
if (threadIdx.x < @columns@) {
  const int query = first + threadIdx.x < @extent@ ? first + threadIdx.x : @extent@ - 1;
  float* const sums = reinterpret_cast<float*>(ring + slot * @slot@ + @sums@) + threadIdx.x;
  @copy@
}
//@ copy_sum
tgc_copy_ahead(reinterpret_cast<tgc_vector<float, 1>*>(@target@), @pointer@, @index@);
//@ shares_of_rows
float share[@groups@][@columns@ / 8][4] = {};
@products@
@dropped@
#pragma unroll
for (int i = 0; i < @groups@; i++)
#pragma unroll
  for (int j = 0; j < @columns@ / 8; j++)
#pragma unroll
    for (int q = 0; q < 4; q++) {
      const float p = @exp@(@power@);
      share[i][j][q] = p * (share[i][j][q] - delta[i][q / 2]);
    }
@combine@
//@ shares_of_columns
const float* const sums = reinterpret_cast<const float*>(columns_slot + @sums@);
#pragma unroll
for (int j = 0; j < @columns@ / 8; j++)
#pragma unroll
  for (int q = 0; q < 4; q++) {
    const int column = j * 8 + lane % 4 * 2 + q % 2;
    const bool hidden = sums[column] == -INFINITY@beyond_queries@;
    const float shift = hidden ? INFINITY : sums[column]@of_base_e@;
#pragma unroll
    for (int i = 0; i < @groups@; i++)
      score[i][j][q] = @exp@(@power@);
  }
@dropped@
@combine_values@
@by_keys@
//@ by_keys
float share[@groups@][@columns@ / 8][4] = {};
@products@
#pragma unroll
for (int j = 0; j < @columns@ / 8; j++)
#pragma unroll
  for (int q = 0; q < 4; q++) {
    const float delta = sums[@columns@ + j * 8 + lane % 4 * 2 + q % 2];
#pragma unroll
    for (int i = 0; i < @groups@; i++) share[i][j][q] = @by_share@;
  }
@combine@
//@ store
#pragma unroll
for (int i = 0; i < @groups@; i++)
#pragma unroll
  for (int j = 0; j < @width@ / 8; j++)
#pragma unroll
    for (int half = 0; half < 2; half++)
      *reinterpret_cast<unsigned*>(@staged@ + (row_first + i * 16 + half * 8 + lane / 4) * @stride@
                                   + j * 16 + lane % 4 * 4) =
          @pack@(@sum@[i][j][half * 2] * @factor@, @sum@[i][j][half * 2 + 1] * @factor@);
__syncwarp();
#pragma unroll
for (int e = lane; e < @warp_rows@ * @width@ / 8; e += 32) {
  const int row = row_first + e / (@width@ / 8), chunk = e % (@width@ / 8);
  const int @position@ = @rows@_first + row;
  if (@position@ < @extent@)
    tgc_store_vector(@pointer@, @index@ + chunk * 8,
                     *reinterpret_cast<const tgc_vector<@storage@, 8>*>(
                         @staged@ + row * @stride@ + chunk * 16));
}
