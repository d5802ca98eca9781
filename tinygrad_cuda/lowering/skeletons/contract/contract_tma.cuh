// contract_tma: C[m, n] = epilogue(sum over k of A(m, k) * B(k, n)) on the matrix units of sm_90a:
// wgmma of operands that TMA brings, sums in float32.
// As many blocks as there are multiprocessors compute tiles of tile_m x tile_n outputs, one after
// another. Warps of the first warpgroup, the producers, copy boxes of 64 values of k (32 of tf32) into
// a ring of `stages` slots, by one thread each; two warpgroups multiply. An mbarrier of a slot counts
// the bytes that have come, another one the warps that have read them:
//
//   producers  wait empty[s] | expect bytes, copy A and B to slot s | s + 1 ...
//   consumers  wait full[s] | products of s begin | products of s - 1 complete: arrive empty[s - 1]
//
// Cooperative: both warpgroups share a tile, so its operands serve twice as many outputs.
// Ping-pong: each has tiles of its own, and multiplies while the other one stores its outputs.
//
// Shared: where there are fewer tiles than blocks and k is long, a tile has a slice for each block
// that all tiles can have, and the other blocks, its helpers, share what is left behind the slices:
//
//   k ------->  tile 0                  tile 1                  | ends a share
//   [ block 0 ............ | helper 0 ][ block 1 ............ | helper 0 | helper 1 ]
//
// Helpers, and blocks with a later slice than a tile's first, leave their sums in memory, warp by
// warp, with a flag that counts launches. The block of the first slice adds them, in the order of k,
// and stores the outputs. Blocks wait for those of lower numbers alone, which have begun before them.
// All slices begin with the same k: blocks that read it at one time share it in the L2 cache.
//
// An H200 takes 71 us for 768 x 3072 x 8192 so, 80 with slices and a second launch.
//
// Clusters: where outputs are few and operands decide, the blocks of a tile's slices are a cluster.
// They stage their sums, and each reads some rows of all of them, in the order of k: 17.3 us for
// 64 x 4096 x 4096, with a second launch 19.9.
//
// Columns of windows come by TMA, too: it walks along the pixels of images with the channels last, and
// brings zeros for what lies outside. A slot then holds channels of one tap.
//
// MN-major tf32: wgmma reads tf32 along k alone, but a weight's gradient sums over pixels, and channels
// are neighbours in memory. Of A a lane loads its part of each product from the slot into registers. B
// is transposed in its slot by a fourth warpgroup, a box of 32 x 32 numbers by a warp, with all numbers
// in registers between its loads and its stores. Both take k in the order 0 2 4 6 1 3 5 7 of eight, so
// that a warp's loads of A meet 32 banks. A third mbarrier of a slot counts the transposing warps:
//
//   transposers  wait full[s] | boxes of B to registers, and back along k | proxy fence, arrive ready[s]
//   consumers    wait full[s], ready[s] | A to registers | products of s | arrive empty[s]
//
// By count shared memory decides: for 128 x 192 x 32 products, 768 clocks of the units, it moves 152 KB
// at 128 bytes a clock: 40 that TMA brings, 16 of A to registers, 48 of B there and back, 48 of products.
//
// Bytes: A grid_n times and B grid_m times, most of them from L2; each output once.
//@ body
char* const shared_a = smem;
char* const shared_b = smem + @stages@ * @bytes_a@;
unsigned long long* const full = reinterpret_cast<unsigned long long*>(smem + @barriers@);
unsigned long long* const empty = full + @stages@;
@ready@
if (threadIdx.x == 0) {
  for (int slot = 0; slot < @stages@; slot++) {
    tgc_barrier_init(full + slot, 1);
    tgc_barrier_init(empty + slot, @readers@);
    @init_ready@
  }
  tgc_barrier_fence();
}
__syncthreads();
@share@
if (threadIdx.x < 128) {
  tgc_registers_give<@few@>();
  const int producer = threadIdx.x / 32;  // of the boxes with this number modulo all producers
  if (threadIdx.x % 32 == 0 && producer < @producers@) {
    tgc_tma_prefetch(&@map_a@);
    tgc_tma_prefetch(&@map_b@);
    int slot = 0;
    unsigned parity = 1;
#pragma unroll 1
    for (int block = @fetch_begin@; block < @last@; @fetch_next@) {
      @fetches@
#pragma unroll 1
      for (int k_first = k_begin; k_first < k_end; k_first += @tile_k@) {
        tgc_barrier_wait(empty + slot, parity);
        if (producer == 0) tgc_barrier_expect(full + slot, @bytes_a@ + @bytes_b@);
        @load_a@
        @load_b@
        slot++;
        if (slot == @stages@) {
          slot = 0;
          parity ^= 1;
        }
      }
    }
  }
@transpose@
} else {
  tgc_registers_take<@many@>();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 - 4, group = threadIdx.x / 128 - 1;
  @part@
  const int warp_m = group_m + warp % 4 * 16, warp_n = group_n;
  @matrix_a@
  const unsigned long long matrix_b =
      tgc_wgmma_descriptor(shared_b + @columns_b@, @block_bytes@, 1024, 8);
  int turn = 0;  // of the ring
  @first@
#pragma unroll 1
  for (int block = @begin@; block < @last@; @next@) {
    @fetches@
    float sum[@tiles_m@][@group_n@ / 2];
    int slot = turn % @stages@;
    unsigned parity = turn / @stages@ % 2;
    @enter@
#pragma unroll 1
    for (int k_first = k_begin; k_first < k_end; k_first += @tile_k@) {
      tgc_barrier_wait(full + slot, parity);
      @await_ready@
      @products@
      turn++;
      slot++;
      if (slot == @stages@) {
        slot = 0;
        parity ^= 1;
      }
    }
    @leave@
    @last_products@
    @others@
    @join@
    @results@
  }
}
//@ matrix_a
const unsigned long long matrix_a =
    tgc_wgmma_descriptor(shared_a + group_m / 64 * @block_bytes@, @block_bytes@, 1024, 8);
//@ products
tgc_wgmma_fence();
#pragma unroll
for (int step = 0; step < @steps@; step++)
#pragma unroll
  for (int i = 0; i < @tiles_m@; i++)
    @multiply@<@group_n@, @trans_a@, @trans_b@>(
        sum[i], matrix_a + (slot * @bytes_a@ + i * @block_bytes@ + step * @step_a@) / 16,
        matrix_b + (slot * @bytes_b@ + step * @step_b@) / 16, step > 0 || k_first > k_begin);
tgc_wgmma_commit();
tgc_wgmma_wait<1>();
if (k_first > k_begin && lane == 0)
  tgc_barrier_arrive(empty + (slot > 0 ? slot : @stages@) - 1);
//@ last_products
tgc_wgmma_wait<0>();
if (lane == 0) tgc_barrier_arrive(empty + (slot > 0 ? slot : @stages@) - 1);
//@ rows_a
// Where a lane's rows lane / 4 and 8 behind begin, at the first and at the last four k of eight.
const int chunk_a = warp_m % 32 / 4 + lane / 16, k_a = lane % 4 * @k_step@;
const char* const column_a = shared_a + warp_m / 32 * @box_bytes@ + k_a * 128 + lane / 4 % 4 * 4;
const int rows_a[4] = {(chunk_a ^ k_a) * 16, ((chunk_a + 2) ^ k_a) * 16,
                       @k_half@ * 128 + (chunk_a ^ (k_a + @k_half@)) * 16,
                       @k_half@ * 128 + ((chunk_a + 2) ^ (k_a + @k_half@)) * 16};
//@ register_products
unsigned a[@steps@][@tiles_m@][4];
#pragma unroll
for (int step = 0; step < @steps@; step++)
#pragma unroll
  for (int i = 0; i < @tiles_m@; i++)
#pragma unroll
    for (int q = 0; q < 4; q++)
      a[step][i][q] = *reinterpret_cast<const unsigned*>(
          column_a + slot * @bytes_a@ + i * (2 * @box_bytes@) + step * 1024 + rows_a[q]);
tgc_wgmma_fence();
#pragma unroll
for (int step = 0; step < @steps@; step++)
#pragma unroll
  for (int i = 0; i < @tiles_m@; i++)
    @multiply@_rs<@group_n@>(sum[i], a[step][i], matrix_b + (slot * @bytes_b@ + step * @step_b@) / 16,
                             step > 0 || k_first > k_begin);
tgc_wgmma_commit();
tgc_wgmma_wait<0>();  // the registers of A are free, and the slot is
if (lane == 0) tgc_barrier_arrive(empty + slot);
//@ transpose
} else if (threadIdx.x >= @transposers@) {
  tgc_registers_give<@some@>();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  int slot = 0;
  unsigned parity = 0;
#pragma unroll 1
  for (int block = @fetch_begin@; block < @last@; @fetch_next@) {
    const int k_slice = block / @grid@ / @batches@;
    const int k_begin = k_slice * @chunk@;
    const int k_end = k_begin + @chunk@ < @k@ ? k_begin + @chunk@ : @k@;
#pragma unroll 1
    for (int k_first = k_begin; k_first < k_end; k_first += @tile_k@) {
      tgc_barrier_wait(full + slot, parity);
#pragma unroll 1
      for (int box = warp; box < @boxes_b@; box += 4) {
        char* const tile = shared_b + slot * @bytes_b@ + box * @box_bytes@;
        float values[32];  // of column `lane`
#pragma unroll
        for (int k = 0; k < 32; k++)
          values[k] = *reinterpret_cast<const float*>(tile + k * 128 + (lane / 4 ^ k % 8) * 16 + lane % 4 * 4);
        __syncwarp();  // all of the box is in registers
#pragma unroll
        for (int chunk = 0; chunk < 8; chunk++) {
          tgc_vector<float, 4> four;
#pragma unroll
          for (int i = 0; i < 4; i++)
            four.at[i] = values[chunk / 2 * 8 + i * @k_step@ + chunk % 2 * @k_half@];
          *reinterpret_cast<tgc_vector<float, 4>*>(tile + lane * 128 + (chunk ^ lane % 8) * 16) = four;
        }
      }
      tgc_proxy_fence();
      __syncwarp();
      if (lane == 0) tgc_barrier_arrive(ready + slot);
      slot++;
      if (slot == @stages@) {
        slot = 0;
        parity ^= 1;
      }
    }
  }
//@ load
#pragma unroll
for (int box = 0; box < @boxes@; box++) {
  if (producer == @owner@) {
    const int at[@axes@] = {@at@};
    tgc_tma_load(shared_@side@ + slot * @bytes@ + box * @box_bytes@, &@map@, full + slot, at);
  }
}
//@ load_pixels
#pragma unroll
for (int box = 0; box < @boxes@; box++) {
  if (producer == @owner@) {
    const int pixel = @pixel@, column = @column@, tap = column / @channels@;
    const int at[4] = {column % @channels@@group@, pixel % @across@ * @step_x@ - @left@,
                       pixel / @across@ % @down@ * @step_y@ - @top@, pixel / @windows@};
    const int taps[2] = {tap % @taps_x@ * @apart_x@, tap / @taps_x@ * @apart_y@};
    tgc_tma_load_pixels(shared_@side@ + slot * @bytes@ + box * @box_bytes@, &@map@, full + slot,
                        at, taps);
  }
}
//@ turns
// Turns of the ring that a tile of outputs takes.
auto turns = [&](int block) {
  const int k_slice = block / @grid@ / @batches@;
  const int k_begin = k_slice * @chunk@;
  const int k_end = k_begin + @chunk@ < @k@ ? k_begin + @chunk@ : @k@;
  return (k_end - k_begin + @tile_k@ - 1) / @tile_k@;
};
//@ first
// The second warpgroup begins with the block's second tile, and lets the first one multiply.
if (group == 1) {
  turn = turns(virtual_block);
  tgc_named_barrier_arrive(1, 256);
}
//@ share
// The turns of the ring that the block has: a slice of a tile, or some that are left of several.
auto begin_of = [&](int helper) { return helper * @each@ + (helper < @more@ ? helper : @more@); };
const int number = @blocks@ - 1 - virtual_block, helper = number - @owners@;
const bool slice = helper < 0;
const int length = slice ? @turns@ : @rest@;  // turns of a tile, or of what is left of it
const int first_turn = slice ? 0 : @first_rest@;
const int share_begin = slice ? number % @tiles@ * @turns@ + number / @tiles@ * @slice@ : begin_of(helper);
const int share_end = slice ? @slice_end@ : begin_of(helper + 1);
//@ share_fetches
const int unit = block / length;  // the tile, of those of all batches
@tile@
@outer@
const int k_begin = (first_turn + block % length) * @tile_k@;
const int turn_end = share_end - unit * length < length ? share_end - unit * length : length;
const int k_unclamped = (first_turn + turn_end) * @tile_k@;
const int k_end = k_unclamped < @k@ ? k_unclamped : @k@;
//@ share_first
// Each launch adds as much to each flag: @pieces@, where nobody waits for the block's sums at once.
const int own_flag = number * @warps@ + warp;
if (number < @tiles@ && lane == 0)
  tgc_grid_flag_publish(@flags@, own_flag, tgc_grid_flag(@flags@, own_flag) + @pieces@);
__syncwarp();
//@ share_join
if (number >= @tiles@) {
  const int piece = unit - share_begin / length;
  const int at = slice ? number - @tiles@ : @owners@ - @tiles@ + helper * @pieces@ + piece;
#pragma unroll
  for (int i = 0; i < @tiles_m@; i++)
#pragma unroll
    for (int q = 0; q < @group_n@ / 8; q++) {
      tgc_vector<float, 4> sums;
#pragma unroll
      for (int v = 0; v < 4; v++) sums.at[v] = sum[i][q * 4 + v];
      tgc_store_vector(@partials@, ((at * @quads@ + i * (@group_n@ / 8) + q) * @consumers@ + threadIdx.x - 128) * 4, sums);
    }
  const bool last = (unit + 1) * length >= share_end;
  __syncwarp();
  if (lane == 0)
    tgc_grid_flag_publish(@flags@, own_flag, tgc_grid_flag(@flags@, own_flag) + (last ? @pieces@ - piece : 1));
  continue;
}
const unsigned long long seen = tgc_grid_flag(@flags@, own_flag) - @pieces@;  // before this launch
@first_helper@
#pragma unroll 1
for (int other = 1;; other++) {
  int from, at, piece = @pieces@ - 1;
  if (other < @slices@) {
    from = other * @tiles@ + unit;
    at = from - @tiles@;
  } else {
    @next_helper@
  }
  tgc_grid_flag_await(@flags@, from * @warps@ + warp, seen + piece + 1);
#pragma unroll
  for (int i = 0; i < @tiles_m@; i++)
#pragma unroll
    for (int q = 0; q < @group_n@ / 8; q++) {
      const tgc_vector<float, 4> sums = tgc_load_vector<4>(
          @partials@, ((at * @quads@ + i * (@group_n@ / 8) + q) * @consumers@ + threadIdx.x - 128) * 4);
#pragma unroll
      for (int v = 0; v < 4; v++) sum[i][q * 4 + v] += sums.at[v];
    }
}
//@ first_helper
// The helper that has the first turn of what is left of the tile.
const int rest = unit * @rest@;
int next_helper = rest < @more@ * (@each@ + 1) ? rest / (@each@ + 1) : (rest - @more@) / @each@;
//@ next_helper
if (begin_of(next_helper) >= rest + @rest@) break;
piece = unit - begin_of(next_helper) / @rest@;
from = @owners@ + next_helper;
at = @owners@ - @tiles@ + next_helper * @pieces@ + piece;
next_helper++;
//@ cluster_fetches
const int unit = block / @slices@;  // the tile, of those of all batches
@tile@
@outer@
const int k_begin = block % @slices@ * @chunk@;
const int k_end = k_begin + @chunk@ < @k@ ? k_begin + @chunk@ : @k@;
