// contract_tf32x3: C[m, n] = epilogue(sum over k of A(m, k) * B(k, n)) of float32 operands on matrix
// units, which read 10 mantissa bits. Each operand is the sum of two numbers of tf32, high and low;
// three products are summed, low * high, high * low, high * high; low * low is below 2^-22 of a
// product. The unit's accumulator truncates: a sum of few k in it is added to a float32 register.
// What is not finite there is summed again in the order of k: low parts of infinities are undefined.
//
// 1. mma.sync (contract_mma.cuh with these products): a warp splits what it has read from shared
//    memory, and adds sums of 8 k.
// 2. wgmma, sm_90a: A comes to registers as in contract_mma and is split there; B is prefetched into
//    registers, split, and stored in two tiles of rows along k, however it lies in memory. Sums of
//    32 k begin with their small products. Of 128 bytes that a multiprocessor's shared memory gives
//    in a clock, products read 64, all else together 43.
//
//   turn t    A t is split | products of t begin | B t + 1 is split and stored | B t + 2 is
//             prefetched, A t + 3 is copied | products of t are complete, and added | barrier
//
// Bytes: A grid_n times and B grid_m times, most of them from L2; each output once.
//@ products
unsigned high_a[@tiles_m@][4], low_a[@tiles_m@][4];
#pragma unroll
for (int i = 0; i < @tiles_m@; i++)
#pragma unroll
  for (int q = 0; q < 4; q++)
    tgc_tf32_split_unsaturated(a[step % 2][i][q], high_a[i][q], low_a[i][q]);
#pragma unroll
for (int j = 0; j < @tiles_8@; j++) {
  unsigned high_b[2], low_b[2];
#pragma unroll
  for (int q = 0; q < 2; q++) tgc_tf32_split_unsaturated(b[step % 2][j][q], high_b[q], low_b[q]);
#pragma unroll
  for (int i = 0; i < @tiles_m@; i++) {
    float part[4] = {};
    @multiply@(part, low_a[i], high_b);
    @multiply@(part, high_a[i], low_b);
    @multiply@(part, high_a[i], high_b);
#pragma unroll
    for (int q = 0; q < 4; q++) sum[i][j][q] += part[q];
  }
}
//@ exact
auto exact = [&](int m, int n) {
  float sum = 0;
#pragma unroll 1
  for (int k = k_begin; k < k_end && sum == sum; k++) {
    @load@
    sum = tgc_fma(@a@, @b@, sum);
  }
  return sum;
};
//@ check
#pragma unroll
for (int v = 0; v < @lanes@; v++)
  if (!tgc_isfinite(totals[v])) totals[v] = exact(m, strip * @lanes@ + v);
//@ body
char* const shared_a = smem;
char* const parts_b = smem + @stages@ * @bytes_a@;  // high and low of a tile, then of the next
const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = threadIdx.x / 128;
const int group_m = group / @warps_n@ * @warp_m@, group_n = group % @warps_n@ * @warp_n@;
const int warp_m = group_m + warp % 4 * 16, warp_n = group_n;
const char* const matrix_a = shared_a + @matrix_a@;
const unsigned long long matrix_b =
    tgc_wgmma_descriptor(parts_b + group_n * @row_bytes@, 8 * @row_bytes@, 8 * @row_bytes@, 8);
@declare@

auto begin = [&](int block) {  // the first copies for a tile of outputs
  @fetches@
  @setup@
#pragma unroll 1
  for (int slot = 0; slot < @stages@ - 1; slot++) {
    @first_loads@
    copy(k_begin + slot * @tile_k@, slot);
  }
  fetch_parts(k_begin);
};

begin(virtual_block);
#pragma unroll 1
for (int block = virtual_block; block < @tiles@; block += @blocks@) {
  @fetches@
  @setup@
  float sum[1][@warp_n@ / 2] = {};
  int slot = 0, free_slot = @stages@ - 1, turn = 0;
  put_parts(0);
  fetch_parts(k_begin + @tile_k@);
  tgc_copy_wait<@stages@ - 2>();
  tgc_proxy_fence();
  __syncthreads();
#pragma unroll 1
  for (int k_first = k_begin; k_first < k_end; k_first += @tile_k@) {
    unsigned high[@steps@][4], low[@steps@][4];
#pragma unroll
    for (int step = 0; step < @steps@; step++) {
      unsigned a[4];
      @ldmatrix_a@(a, matrix_a + slot * @bytes_a@ + step * @step_a@);
#pragma unroll
      for (int q = 0; q < 4; q++) tgc_tf32_split_unsaturated(a[q], high[step][q], low[step][q]);
    }
    float part[@warp_n@ / 2];
    const unsigned long long high_b = matrix_b + turn * (2 * @part_bytes@ / 16);
    const unsigned long long low_b = high_b + @part_bytes@ / 16;
    @first_sums@
    @begin_products@
    turn ^= 1;
    @next_loads@
    put_parts(turn);
    fetch_parts(k_first + 2 * @tile_k@);
    copy(k_first + (@stages@ - 1) * @tile_k@, free_slot);
    tgc_copy_wait<@stages@ - 2>();
    @add@
    tgc_proxy_fence();
    __syncthreads();  // the next tiles are complete, and nobody reads this slot of A any more
    slot = slot + 1 < @stages@ ? slot + 1 : 0;
    free_slot = free_slot + 1 < @stages@ ? free_slot + 1 : 0;
  }
  tgc_copy_wait<0>();
  __syncthreads();
  if (block + @blocks@ < @tiles@) begin(block + @blocks@);
  @results@
}
//@ begin_products
tgc_wgmma_fence();
#pragma unroll
for (int step = @first@; step < @last@; step++) {
  tgc_wgmma_tf32_rs<@warp_n@>(part, low[step], high_b + step * 2, step > @first@);
  tgc_wgmma_tf32_rs<@warp_n@>(part, high[step], low_b + step * 2, true);
}
#pragma unroll
for (int step = @first@; step < @last@; step++)
  tgc_wgmma_tf32_rs<@warp_n@>(part, high[step], high_b + step * 2, true);
tgc_wgmma_commit();
//@ add
tgc_wgmma_wait<0>();
tgc_wgmma_complete(part);
#pragma unroll
for (int q = 0; q < @warp_n@ / 2; q++) sum[0][q] += part[q];
//@ pipeline
@loads@
auto copy = [&](int k_first, int slot) {
  if (k_first < k_end) {
    @put_a@
  }
  tgc_copy_commit();
};
auto fetch_parts = [&](int k_first) {
  if (k_first >= k_end) return;
  @fetch_b@
};
auto put_parts = [&](int turn) {
  char* const tile = parts_b + turn * (2 * @part_bytes@);
#pragma unroll
  for (int i = 0; i < @count@; i++) {
    const int row = @row@;
    tgc_vector<float, @width@> high, low;
#pragma unroll
    for (int v = 0; v < @width@; v++) {
      unsigned parts[2];
      tgc_tf32_split_unsaturated(__float_as_uint(prefetch_b[i * @width@ + v]), parts[0], parts[1]);
      high.at[v] = __uint_as_float(parts[0]);
      low.at[v] = __uint_as_float(parts[1]);
    }
    char* const at = tile + row * @row_bytes@ + @column@;
    *reinterpret_cast<tgc_vector<float, @width@>*>(at) = high;
    *reinterpret_cast<tgc_vector<float, @width@>*>(at + @part_bytes@) = low;
  }
};
//@ loads
auto fetch = [&](int k_first) {
  if (k_first >= k_end) return;
  @fetch_a@
};
