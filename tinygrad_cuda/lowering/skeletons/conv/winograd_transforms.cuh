// winograd_transforms: the transforms around a batched product. A thread transforms one tile of one
// channel; its neighbours have the tiles beside it, so that accesses to a plane coalesce. What a tile
// shares with the next one comes from the L1 cache.
//
// Versions, 3 x 3, 128 x 128 x 28 x 28 to 128 channels, float32 on an H200, us forward and with both
// gradients (docs/measurements.md):
//   1. by definition, as an implicit matrix product                                  660  1988
//   2. tiles of 4 x 4 results; each thread writes its own tile                       288   863
//   3. the results of tiles meet in shared memory, so that epilogues store in order  281   832
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
