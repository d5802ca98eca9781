// transpose: a map of values whose innermost axis in memory is another than its output's. A block takes
// a tile of both axes: neighbouring threads load along the one, the tile passes through shared memory,
// and neighbouring threads store along the other. Both sides move up to 16 bytes a thread, all loads of
// a thread are in flight together, and chunks of 16 bytes of the tile are swizzled, so that no bank is
// asked twice.
//
// Grid: a block of 256 threads for each tile, of 2048 to 4096 elements. Bytes: each value once.
//@ body
@tiles@
@declare@
#pragma unroll
for (int k = 0; k < @loads@; k++) {
  const int item = k * @threads@ + threadIdx.x;
  @load@
}
#pragma unroll
for (int k = 0; k < @loads@; k++) {
  const int item = k * @threads@ + threadIdx.x;
  @put@
}
__syncthreads();
#pragma unroll
for (int k = 0; k < @stores@; k++) {
  const int item = k * @threads@ + threadIdx.x;
  @store@
}
//@ vector
@before@
#pragma unroll
for (int v = 0; v < @width@; v++) {
  @map@
}
@after@
