// row_reduce: `group` threads, from one to a whole block, reduce one row phase after phase: each phase
// is a loop over the row that needs the results of the phases before it (softmax has three).
//
// Versions, softmax of 8192 x 8192 on an H200, shares of a copy's speed (docs/measurements.md):
//   1. a fixed grid of blocks, each with the next row ahead                                  88 %
//   2. a row in registers, loaded once, 1024 threads x 2 vectors                             95 %
//   3. the same with fewer threads and more vectors each: 512 x 4, 256 x 8                   97 %
//   4. loads that leave L2 last, so that stores leave it in order                           100 %
// Rows of 128 to 512 values have a warp each: 98.5 to 99.7 %.
//
// body: one row for each group of threads; spare_body: the same where some groups have no row.
// phase: the row stays in registers between phases. long_phase: the row does not fit and is loaded once
//   a phase; what one phase loads last the next one loads first, since it is still in the cache.
// storing_phase, of_lanes: a long_phase that stores; it issues several loads before its first store.
// walk_body: a block reduces many rows and accumulates column sums beside them.
// warps_body: the same by each warp, with short rows and their column sums in registers: the gradients
//   of layer norm of 8192 x 768 take 29.3 us with three sums, 29.0 without any (docs/measurements.md).
// join_warps: a block's warps leave their sums of columns in shared memory, where they are joined.
// part_body, keep: a row too long for a block is cut into parts, whose results stay in memory. Parts
//   are interleaved, so that all blocks together walk through memory.
// join_body: the second stage, in which a warp or a block combines the parts of one row.
//@ body
const int thread = threadIdx.x % @group@;
const int row = virtual_block * @per_block@ + threadIdx.x / @group@;
if (row >= @rows@) return;
@phases@
//@ spare_body
const int thread = threadIdx.x % @group@;
const int own_row = virtual_block * @per_block@ + threadIdx.x / @group@;
const bool live = own_row < @rows@;
const int row = live ? own_row : @rows@ - 1;  // a warp stays whole; it does not store spare rows
@phases@
//@ walk_body
const int thread = threadIdx.x % @group@;  // the modulo tells the compiler its range
@start@
#pragma unroll 1
for (int item = thread; item < @items@; item += @group@) {
  @first@
}
#pragma unroll 1
for (int row = virtual_block, buffer = 0; row < @rows@; row += @blocks@, buffer ^= 1) {
  char* const scratch = smem + buffer * @scratch_bytes@;  // the row before may still be read
  @phases@
}
#pragma unroll 1
for (int item = thread; item < @items@; item += @group@) {
  @last@
}
//@ warps_body
const int thread = threadIdx.x % @group@;
const int warp = threadIdx.x / @group@;
@start@
#pragma unroll
for (int k = 0; k < @trips@; k++) {
  @first@
}
#pragma unroll 1
for (int turn = virtual_block * @warps@ + warp; turn < @rows@; turn += @stride@) {
  const int row = @row@;
  @phases@
}
@last@
//@ join_warps
{
  @ctype@* const shared = reinterpret_cast<@ctype@*>(smem);
  __syncthreads();  // the sums before these may still be read
#pragma unroll
  for (int k = 0; k < @trips@; k++) {
    if (const int item = k * @group@ + thread; item < @items@) {
#pragma unroll
      for (int v = 0; v < @width@; v++) {
        shared[(warp * @items@ + item) * @width@ + v] = @value@[k][v];
      }
    }
  }
  __syncthreads();
  for (int column = threadIdx.x; column < @columns@; column += @threads@) {
    @ctype@ total = shared[column];
#pragma unroll
    for (int other = 1; other < @warps@; other++) {
      total = @operator@(total, shared[other * @columns@ + column]);
    }
    tgc_store(@partial@, virtual_block * @columns@ + column, total);
  }
}
//@ phase
@before@
#pragma unroll @unroll@
for (int k = 0; k < @trips@; k++) {
  if (const @index@ item = k * @group@ + thread; item < @items@) {
    @load@
#pragma unroll
    for (int v = 0; v < @width@; v++) {
      @map@
    }
    @store@
  }
}
@combine@
//@ finish
if (@first@) {
  @epilogue@
  @store@
}
//@ part_body
const int thread = threadIdx.x;
const int row = virtual_block / @parts@;
const int part = virtual_block % @parts@;
@phases@
//@ keep
if (thread == 0) {
  @keep@
}
//@ long_phase
@before@
#pragma unroll @unroll@
for (@index@ @counter@ = @first@ + thread; @counter@ < @last@; @counter@ += @stride@) {
  @item@
  @load@
#pragma unroll
  for (int v = 0; v < @width@; v++) {
    @map@
  }
  @store@
}
@combine@
//@ storing_phase
@before@
#pragma unroll 1
for (@index@ start = @first@ + thread; start < @last@; start += @unroll@ * @stride@) {
  @declare@
#pragma unroll
  for (int k = 0; k < @unroll@; k++) {
    const @index@ @counter@ = start + k * @stride@;
    if (@counter@ < @last@) {
      @item@
      @ahead@
    }
  }
#pragma unroll
  for (int k = 0; k < @unroll@; k++) {
    const @index@ @counter@ = start + k * @stride@;
    if (@counter@ < @last@) {
      @item@
      @load@
#pragma unroll
      for (int v = 0; v < @width@; v++) {
        @map@
      }
      @store@
    }
  }
}
@combine@
//@ of_lanes
#pragma unroll
for (int v = 0; v < @width@; v++) {
  @ahead@
}
//@ join_body
const int thread = threadIdx.x % @group@;
const int row = virtual_block * (@threads@ / @group@) + threadIdx.x / @group@;
if (row >= @rows@) return;
@before@
#pragma unroll 4
for (int part = thread; part < @parts@; part += @group@) {
  @load@
}
@combine@
if (thread == 0) {
  @epilogue@
  @store@
}
