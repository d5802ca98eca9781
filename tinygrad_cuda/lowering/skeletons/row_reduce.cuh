// ROW: `group` threads, from one to the whole block, make one row; the values of a row are combined
// along its reduced axes, phase after phase. Rows that fit on chip are loaded once, into registers;
// longer ones once a phase: `long_phase`, or `storing_phase` where it stores what it made; what one
// phase loads last the next one loads first, as it is still in the cache.
// `walk_body`: a block makes many rows, whose columns it keeps: a thread has the same in each row.
// `part_*`: a row too long for a block is cut into parts, whose results stay in memory; they take
// turns, so that all blocks together walk through memory.
// `join_body`: the second stage, in which a warp or a block combines the parts of one line.
//@ body
const int thread = threadIdx.x % @group@;
const int line = virtual_block * @per_block@ + threadIdx.x / @group@;
if (line >= @lines@) return;
@phases@
//@ spare_body
const int thread = threadIdx.x % @group@;
const int wanted = virtual_block * @per_block@ + threadIdx.x / @group@;
const bool live = wanted < @lines@;
const int line = live ? wanted : @lines@ - 1;  // a warp stays whole: its spare rows are not stored
@phases@
//@ walk_body
const int thread = threadIdx.x % @group@;  // which tells the compiler that it is less
@start@
#pragma unroll 1
for (int item = thread; item < @items@; item += @group@) {
  @first@
}
#pragma unroll 1
for (int line = virtual_block, turn = 0; line < @lines@; line += @blocks@, turn ^= 1) {
  char* const slots = smem + turn * @scratch@;  // those of the row before may still be read
  @phases@
}
#pragma unroll 1
for (int item = thread; item < @items@; item += @group@) {
  @last@
}
//@ phase
@before@
#pragma unroll @unroll@
for (int k = 0; k < @trips@; k++) {
  const @index@ item = k * @group@ + thread;
  if (item < @items@) {
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
const int line = virtual_block / @parts@;
const int part = virtual_block % @parts@;
@phases@
//@ keep
if (thread == 0) {
  @keep@
}
//@ long_phase
@before@
#pragma unroll @unroll@
for (@index@ @turn@ = @first@ + thread; @turn@ < @last@; @turn@ += @stride@) {
  @place@
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
    const @index@ @turn@ = start + k * @stride@;
    if (@turn@ < @last@) {
      @place@
      @ahead@
    }
  }
#pragma unroll
  for (int k = 0; k < @unroll@; k++) {
    const @index@ @turn@ = start + k * @stride@;
    if (@turn@ < @last@) {
      @place@
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
//@ join_body
const int thread = threadIdx.x % @group@;
const int line = virtual_block * (@threads@ / @group@) + threadIdx.x / @group@;
if (line >= @lines@) return;
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
