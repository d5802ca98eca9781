// grid_reduce: rows too long for a block, reduced by all blocks of the GPU together. The blocks hold a
// few rows on the chip, so that each element is read once and each result is stored once.
//
// A row is cut into tiles of neighbours. A warp holds one tile in registers and the next one in shared
// memory, and publishes the sums of the next tile before it waits for the totals of its own.
//
//   producer warp (6 or 7 of a block)   reducer warp (some blocks)       last warp of each block
//   ---------------------------------   ------------------------------   ------------------------
//   take a ticket: the next tile
//   bulk copy: tile -> shared memory
//   sum the tile, publish its part ---> poll the row's parts,
//   ...                                 combine them in a fixed order,
//   ...                                 store what is one value a row,
//   ...                                 publish the row's totals ------> poll the totals,
//   wait for the totals <----------------------------------------------- publish them to the block
//   map the tile in registers, store
//
// A published word holds 32 bits of a value and the number of the launch, so that it says itself
// whether it is valid; no fence and no counter is needed, and nothing is cleared between launches.
// Tickets give tiles out in order, which keeps the multiprocessors together.
// All blocks must be co-resident, because they wait for each other: 1 or 2 blocks of 256 threads on a
// multiprocessor.
//
// Versions, batch norm of 256 x 64 x 56 x 56 float32 on an H200, us forward and with its gradients
// (docs/measurements.md):
//   1. statistics, second stage and normalisation as three kernels: x is read twice        153  363
//   2. one launch in which groups of 6 to 13 MB take turns, second read marked as last     140  316
//   3. persistent blocks with tiles in shared memory, sums exchanged two tiles later       149
//   4. specialised warps, bulk copies, words that carry the number of the launch           115  266
//   5. the tile moves to registers once it is summed; the next one is published early      112  239
//   6. one warp makes a tile alone; one exchange serves forward and gradients              110  232
//   7. a tile's sums about a shift, in one pass                                            109  230
//   8. tickets, and whole planes as tiles with gradients                                   109  217
//   9. copies marked as the last to leave L2                                               106  212
// Generated, version 9 takes 106.9 and 213.8 us; at the copy's speed the bytes take 98 us forward.
//@ body
const int warp = tgc_warp(), lane = tgc_lane();
const int producers = virtual_block < @reducers@ ? @warps@ - 2 : @warps@ - 1;
char* const tiles = smem + warp * @tile_bytes@;
unsigned long long* const row_totals = reinterpret_cast<unsigned long long*>(smem + @row_totals@);
unsigned long long* const barrier = row_totals + @rows@ * @count@ + warp;
@tiles_declared@
const unsigned launch = tgc_grid_launch<@tiles@>(@exchange@);
int next = @tiles@;
unsigned parity = 0;
if (warp < producers) {
  next = warp * @blocks@ + virtual_block - (warp == @warps@ - 2 ? @reducers@ : 0);
  if (lane == 0) tgc_grid_barrier_init(barrier);
  __syncwarp();
  @copy@
}
for (int i = threadIdx.x; i < @rows@ * @count@; i += @threads@) row_totals[i] = 0ull;
__syncthreads_or(launch == 0);  // every thread has read the number before this launch can end
if (warp == @warps@ - 1) {  // polls totals for its block
#pragma unroll 1
  for (int row = 0; row < @rows@;) {
    float a[@count@];
    bool valid = true;
#pragma unroll
    for (int i = 0; i < @count@; i += 2)
      valid &= tgc_grid_poll(@exchange@, @totals_at@ + row * @count@ + i, a[i], a[i + 1], launch);
    if (!__all_sync(TGC_ALL_LANES, valid)) {
      tgc_nap(100);
      continue;
    }
    if (lane == 0) {
#pragma unroll
      for (int i = 0; i < @count@; i++) tgc_block_publish(row_totals + row * @count@ + i, a[i], launch);
    }
    __syncwarp();
    row++;
  }
  return;
}
if (warp == producers) {  // the reducer warp
#pragma unroll 1
  for (int row = virtual_block; row < @rows@; row += @blocks@) {
    float first = 0.0f, sum[@count@] = {};
#pragma unroll 1
    for (int start = 0; start < @parts@;) {
      float a[4][@count@];
      bool valid = true;
#pragma unroll
      for (int k = 0; k < 4; k++) {
        const int part = start + k * 32 + lane;
        const int index = @parts_at@ + (row * @parts@ + (part < @parts@ ? part : 0)) * @count@;
#pragma unroll
        for (int i = 0; i < @count@; i += 2)
          valid &= tgc_grid_poll(@exchange@, index + i, a[k][i], a[k][i + 1], launch);
      }
      if (!__all_sync(TGC_ALL_LANES, valid)) {
        tgc_nap(100);
        continue;
      }
      if (start == 0) first = __shfl_sync(TGC_ALL_LANES, tgc_isfinite(a[0][0]) ? a[0][0] : 0.0f, 0);
#pragma unroll
      for (int k = 0; k < 4; k++) {
        if (start + k * 32 + lane < @parts@) {
          @add@
        }
      }
      start += 128;
    }
#pragma unroll
    for (int i = 0; i < @count@; i++) sum[i] = tgc_warp_reduce(sum[i], tgc_sum_op());
    @finals@
    if (lane == 0) {
      @publish_totals@
      @epilogue@
      @store@
    }
  }
  return;
}
if (next < @tiles@) {
  @publish@
}
@registers@
#pragma unroll 1
while (next < @tiles@) {
  const int tile = next;
  unsigned bits = 0;
#pragma unroll
  for (int k = 0; k < @trips@; k++) {
    if (const int item = k * 32 + lane; item < @items@) {
      @to_registers@
    }
  }
  tgc_grid_loads_done(bits);
  next = tgc_grid_ticket<@tiles@>(@exchange@) + @all_producers@;
  if (next < @tiles@) {
    parity ^= 1;
    @copy@
    @publish@
  }
  const int row = tile / @parts@;
  @position@
  float totals[@count@];
  tgc_block_wait(row_totals + row * @count@, totals, launch);
  @row_values@
  @map_tile@
}
//@ copy
if (lane == 0) {
  const int row = next / @parts@;
  @position@
  tgc_grid_barrier_expect(barrier, @tile_bytes@);
  @copies@
}
//@ publish
{
  tgc_grid_barrier_wait(barrier, parity);
  const int row = next / @parts@;
  @position@
  @before@
  @loop@
  @combine@
  if (lane == 0) {
    @publish@
  }
}
//@ loop
@unroll@
for (int k = 0; k < @trips@; k++) {
  if (const int item = k * 32 + lane; item < @items@) {
    @load@
#pragma unroll
    for (int v = 0; v < @width@; v++) {
      @map@
    }
    @wide_store@
  }
}
