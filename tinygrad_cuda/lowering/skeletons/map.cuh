// MAP: every thread makes `width` neighbouring elements of each output.
//@ body
const @index@ item = @widened@virtual_block * @threads@ + threadIdx.x;
if (item >= @items@) return;
@load@
#pragma unroll
for (int v = 0; v < @width@; v++) {
  @map@
}
@store@
