// WINOGRAD: the transforms around a product of planes. A thread makes one tile of one channel; its
// neighbours make the tiles beside it, so that what a plane holds of them is stored and loaded
// together. What a tile shares with the next one comes from the L1 cache.
//@ place
const @index@ item = (@index@)virtual_block * @threads@ + threadIdx.x;
if (item >= @items@) return;
const int channel = int(item / @places@), place = int(item % @places@);
const int image = place / @tiles@, tile = place % @tiles@;
const int tile_y = tile / @columns@, tile_x = tile % @columns@;
@outer@
//@ planes
@place@
float from[@size@][@size@];
#pragma unroll
for (int u = 0; u < @size@; u++) {
  @row@
#pragma unroll
  for (int v = 0; v < @run@; v++) {
    @load@
  }
}
float half[@lines@][@size@];
#pragma unroll
for (int v = 0; v < @size@; v++) {
  @down@
}
#pragma unroll
for (int f = 0; f < @lines@; f++) {
  float to[@lines@];
  @across@
#pragma unroll
  for (int g = 0; g < @lines@; g++) {
    @store@
  }
}
//@ images
@place@
float from[@size@][@size@];
#pragma unroll
for (int f = 0; f < @size@; f++)
#pragma unroll
  for (int g = 0; g < @size@; g++) {
    @load@
    from[f][g] = @value@;
  }
float half[@lines@][@size@];
#pragma unroll
for (int v = 0; v < @size@; v++) {
  @down@
}
#pragma unroll
for (int f = 0; f < @lines@; f++) {
  const int y = tile_y * @lines@ + f;
  if (@inside_y@) {
    float to[@lines@];
    @across@
    @row@
#pragma unroll
    for (int j = 0; j < @lines@ / @lanes@; j++) {
      const int strip = tile_x * (@lines@ / @lanes@) + j;
      if (@inside_x@) {
        @strip_load@
#pragma unroll
        for (int v = 0; v < @lanes@; v++) {
          const float total = to[j * @lanes@ + v];
          @map@
        }
        @store@
      }
    }
  }
}
