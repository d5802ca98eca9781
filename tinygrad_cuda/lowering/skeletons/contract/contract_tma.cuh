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
// Columns of windows come by TMA, too: it walks along the pixels of images with the channels last, and
// brings zeros for what lies outside. A slot then holds channels of one tap.
//
// Bytes: A grid_n times and B grid_m times, most of them from L2; each output once.
//@ body
char* const shared_a = smem;
char* const shared_b = smem + @stages@ * @bytes_a@;
unsigned long long* const full = reinterpret_cast<unsigned long long*>(smem + @barriers@);
unsigned long long* const empty = full + @stages@;
if (threadIdx.x == 0) {
  for (int slot = 0; slot < @stages@; slot++) {
    tgc_barrier_init(full + slot, 1);
    tgc_barrier_init(empty + slot, @readers@);
  }
  tgc_barrier_fence();
}
__syncthreads();
if (threadIdx.x < 128) {
  tgc_registers_give<@few@>();
  const int producer = threadIdx.x / 32;  // of the boxes with this number modulo all producers
  if (threadIdx.x % 32 == 0 && producer < @producers@) {
    tgc_tma_prefetch(&@map_a@);
    tgc_tma_prefetch(&@map_b@);
    int slot = 0;
    unsigned parity = 1;
#pragma unroll 1
    for (int block = virtual_block; block < @tiles@; block += @blocks@) {
      @fetches@
#pragma unroll 1
      for (int k_first = k_begin; k_first < k_last; k_first += @tile_k@) {
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
} else {
  tgc_registers_take<@many@>();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 - 4, group = threadIdx.x / 128 - 1;
  @part@
  const int warp_m = group_m + warp % 4 * 16, warp_n = group_n;
  const unsigned long long matrix_a =
      tgc_wgmma_descriptor(shared_a + group_m / 64 * @block_bytes@, @block_bytes@, 1024, 8);
  const unsigned long long matrix_b =
      tgc_wgmma_descriptor(shared_b + group_n / 64 * @block_bytes@, @block_bytes@, 1024, 8);
  int turn = 0;  // of the ring
  @first@
#pragma unroll 1
  for (int block = @begin@; block < @tiles@; block += @step@) {
    @fetches@
    float sum[@tiles_m@][@group_n@ / 2];
    int slot = turn % @stages@;
    unsigned parity = turn / @stages@ % 2;
    @enter@
#pragma unroll 1
    for (int k_first = k_begin; k_first < k_last; k_first += @tile_k@) {
      tgc_barrier_wait(full + slot, parity);
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
      turn++;
      slot++;
      if (slot == @stages@) {
        slot = 0;
        parity ^= 1;
      }
    }
    @leave@
    tgc_wgmma_wait<0>();
    if (lane == 0) tgc_barrier_arrive(empty + (slot > 0 ? slot : @stages@) - 1);
    @others@
    @results@
  }
}
//@ load
#pragma unroll
for (int box = 0; box < @boxes@; box++) {
  if (producer == @owner@) {
    const int at[@axes@] = {@at@};
    tgc_tma_load(shared_@side@ + slot * @bytes@ + box * @block_bytes@, &@map@, full + slot, at);
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
    tgc_tma_load_pixels(shared_@side@ + slot * @bytes@ + box * @block_bytes@, &@map@, full + slot,
                        at, taps);
  }
}
//@ turns
// Turns of the ring that a tile of outputs takes.
auto turns = [&](int block) {
  const int k_slice = block / @grid@ / @batches@;
  const int k_begin = k_slice * @chunk@;
  const int k_last = k_begin + @chunk@ < @k@ ? k_begin + @chunk@ : @k@;
  return (k_last - k_begin + @tile_k@ - 1) / @tile_k@;
};
//@ first
// The second warpgroup begins with the block's second tile, and lets the first one multiply.
if (group == 1) {
  turn = turns(virtual_block);
  tgc_named_barrier_arrive(1, 256);
}
