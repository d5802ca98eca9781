// column_reduce: the reduced axes do not include the innermost one, so neighbouring threads take
// neighbouring strips of `width` columns and walk down them. A block has `across` x `down` threads,
// whose results meet in shared memory.
//
// Versions, column sums of 8192 x 8192 float32 on an H200, shares of a copy's speed
// (docs/measurements.md):
//   1. too few blocks                                                                    50 to 80 %
//   2. several rows in flight, 512 blocks, a second stage with a thread for each column       102 %
// An unrolled outer loop doubles the registers (138 for 64), which halves the blocks that fit.
//
// storing_loop: where values are stored on the way, the loads of some turns precede the first store.
//
// join_columns: the second stage where a row kernel accumulated the columns, a part for each block.
//@ body
const int across = threadIdx.x % @across@;
const int down = threadIdx.x / @across@;
const int tile = virtual_block / @parts@;
const int part = virtual_block % @parts@;
const int own_strip = tile * @across@ + across;
const bool live = own_strip < @strips@;
const int strip = live ? own_strip : @strips@ - 1;  // a spare thread repeats the last and stores nothing
@before@
#pragma unroll
for (int v = 0; v < @width@; v++) {
  @start@
}
const @index@ first = @widened@part * @chunk@;
const @index@ last = first + @chunk@ < @length@ ? first + @chunk@ : @length@;
@loop@
@combine@
if (down == 0 && live) {
  @epilogue@
#pragma unroll
  for (int v = 0; v < @width@; v++) {
    @finish@
  }
  @after@
}
//@ loop
#pragma unroll 4
for (@index@ item = first + down; item < last; item += @down@) {
  @load@
#pragma unroll
  for (int v = 0; v < @width@; v++) {
    @map@
  }
  @store@
}
//@ storing_loop
#pragma unroll 1
for (@index@ group = first + down; group < last; group += @rows@ * @down@) {
  @declare@
#pragma unroll
  for (int k = 0; k < @rows@; k++) {
    const @index@ item = group + k * @down@;
    if (item < last) {
      @ahead@
    }
  }
#pragma unroll
  for (int k = 0; k < @rows@; k++) {
    const @index@ item = group + k * @down@;
    if (item < last) {
      @load@
#pragma unroll
      for (int v = 0; v < @width@; v++) {
        @map@
      }
      @store@
    }
  }
}
//@ loop_of_rows
@index@ group = first + down;
#pragma unroll 1
for (; group + (@rows@ - 1) * @down@ < last; group += @rows@ * @down@) {
  @declare@
#pragma unroll
  for (int turn = 0; turn < @rows@; turn++) {
    const @index@ item = group + turn * @down@;
    @load@
#pragma unroll
    for (int v = 0; v < @width@; v++) {
      @map@
    }
  }
#pragma unroll
  for (int v = 0; v < @width@; v++) {
    @take@
  }
}
//@ join_columns
const int across = threadIdx.x % @across@;
const int down = threadIdx.x / @across@;
const int own_column = virtual_block * @across@ + across;
const bool live = own_column < @columns@;
const int column = live ? own_column : @columns@ - 1;
@before@
#pragma unroll @unroll@
for (int part = down; part < @parts@; part += @down@) {
  @load@
}
@combine@
if (down == 0 && live) {
  @epilogue@
  @store@
}
//@ combine
{
  @ctype@* shared = reinterpret_cast<@ctype@*>(smem);
#pragma unroll
  for (int v = 0; v < @width@; v++) shared[v * @threads@ + threadIdx.x] = @value@;
  __syncthreads();
  for (int half = @down@ / 2; half > 0; half /= 2) {
    if (down < half) {
#pragma unroll
      for (int v = 0; v < @width@; v++) {
        @ctype@* own = shared + v * @threads@ + threadIdx.x;
        *own = @value@ = @operator@(@value@, own[half * @across@]);
      }
    }
    __syncthreads();
  }
}
