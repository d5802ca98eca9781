// transpose: a map of values whose innermost axis in memory is another than its output's. A block takes
// a tile of both axes: neighbouring threads load along the one, the tile passes through shared memory,
// and neighbouring threads store along the other. Both sides move up to 16 bytes a thread, all loads of
// a thread are in flight together, and chunks of 16 bytes of the tile are swizzled, so that no bank is
// asked twice. Rows too short or too odd for that, which follow each other in memory (the windows of a
// weight, images of 7 x 7), are loaded as one run.
//
// Grid: a block of 256 threads for each tile, of 4096 elements where there are enough. Bytes: each
// value once.
//
// Versions, TB/s read and written, L2 empty before, on an H200 (lab/transposes.py): 8192 x 8192 of
// float32 and of bfloat16; 256 x 64 x 32 x 32 of bfloat16 to channels last; a copy in order beside them.
//   1. a map in the output's order                       1.02  0.98  1.72
//   2. tiles of 1024 elements, 32 of the operand's axis  3.88  2.60  2.55
//   3. of 2048                                           3.92  3.47  3.09
//   4. of 4096, 64 of the operand's axis                 4.02  3.74  3.31
//   a copy in order                                      4.16  3.98  3.35
// Where no access is of more than an element (8191 x 8193, bfloat16): 0.27 before, 1.46 now, copy 3.83.
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
