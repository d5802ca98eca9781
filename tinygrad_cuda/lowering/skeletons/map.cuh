// map: every thread computes `width` neighbouring elements of each output.
//
// Versions, `x + 1` of 8192 x 8192 float32 on an H200, shares of a copy's speed
// (docs/measurements.md):
//   1. a fixed grid that strides over the data                     85 to 90 %
//   2. a thread for each element group, unrolled 2 to 8 times      96 to 99.5 %
//   3. one access of 16 bytes a thread, as many blocks as needed   100 %
//
// rows: a thread makes the same columns of several rows, of which each has a scale and the like.
//@ body
const @index@ item = @widened@virtual_block * @threads@ + threadIdx.x;
if (item >= @items@) return;
@load@
#pragma unroll
for (int v = 0; v < @width@; v++) {
  @map@
}
@store@
//@ rows
const int thread = threadIdx.x;
@before@
@declare@
#pragma unroll
for (int k = 0; k < @turns@; k++) {
  if ((virtual_block * @turns@ + k) * @threads@ + thread < @items@) {
    @ahead@
  }
}
#pragma unroll
for (int k = 0; k < @turns@; k++) {
  if ((virtual_block * @turns@ + k) * @threads@ + thread < @items@) {
    @load@
#pragma unroll
    for (int v = 0; v < @width@; v++) {
      @map@
    }
    @store@
  }
}
