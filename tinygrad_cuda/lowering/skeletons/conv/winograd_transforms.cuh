// WINOGRAD: the transforms around a product of planes. A thread makes one tile of one channel; its
// neighbours make the tiles beside it, so that what a plane holds of them is stored and loaded
// together. What a tile shares with the next one comes from the L1 cache.
//@ place
const @index@ item = @widened@virtual_block * @threads@ + threadIdx.x;
if (item >= @items@) return;
const int channel = int(item / @places@), place = int(item % @places@);
const int image = place / @tiles@, tile = place % @tiles@;
const int tile_y = tile / @columns@, tile_x = tile % @columns@;
@outer@
//@ tile
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
    @each@
  }
}
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
@tile@
//@ images
// A block makes tiles of @several@ neighbouring channels of some images, or of rows of one image. They
// meet in shared memory, so that what follows them goes along memory.
const int group = virtual_block / @channel_groups@, part = virtual_block % @channel_groups@;
const int first_image = group / @bands@ * @images_each@, band = group % @bands@;
float* const shared = reinterpret_cast<float*>(smem);
{
  const int local = threadIdx.x % @tiles_each@;
  const int channel = part * @several@ + threadIdx.x / @tiles_each@;
  const int image = first_image + local / @band_tiles@, tile = band * @band_tiles@ + local % @band_tiles@;
  if (threadIdx.x < @active@ && image < @images@ && tile < @tiles@) {
    const int place = image * @tiles@ + tile;
    @before@
    float from[@size@][@size@];
#pragma unroll
    for (int f = 0; f < @size@; f++)
#pragma unroll
      for (int g = 0; g < @size@; g++) {
        @load@
        from[f][g] = @value@;
      }
    @tile@
  }
}
__syncthreads();
@outer@
#pragma unroll
for (int turn = 0; turn < @turns@; turn++) {
  const unsigned e = turn * @threads@ + threadIdx.x;  // divides in fewer instructions than an int
  const unsigned near = e / @run@, along = e % @run@;
  const int image = first_image + near, strip = part * @part_strips@ + band * @run@ + along;
  if (((turn + 1) * @threads@ <= @items@ || e < @items@)@inside@) {
    @strip_load@
    @strip_place@
#pragma unroll
    for (int v = 0; v < @lanes@; v++) {
      @lane_place@
      const float total = from[@lane_step@];
      @map@
    }
    @store@
  }
}
//@ result
const unsigned at = band * @run_elements@u + along * @lanes@u@lane@;
const unsigned y = at % @plane_elements@u / @width@u, x = at % @width@u;
const float* const from = shared + (y % @lines@u * @lines@u + x % @lines@u) * @pitch@u +
                          at / @plane_elements@u * @tiles_each@u + near * @band_tiles@u +
                          (y / @lines@u - band * @band_rows@u) * @columns@u + x / @lines@u;
