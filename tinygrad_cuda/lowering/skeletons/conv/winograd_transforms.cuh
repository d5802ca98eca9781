// winograd_transforms: the transforms around a batched product. A thread transforms one tile of one
// channel; its neighbours transform the tiles beside it, so that accesses to a plane coalesce. Inputs
// that neighbouring tiles share come from the L1 cache.
//
// Versions, 3 x 3, 128 x 128 x 28 x 28 to 128 channels, float32 on an H200, us forward and with both
// gradients (docs/measurements.md):
//   1. by definition, as an implicit matrix product                                  660  1988
//   2. tiles of 4 x 4 results; each thread writes its own tile                       288   863
//   3. outputs pass through shared memory, so that epilogues store in order          281   832
//@ thread_tile
const @index@ global_thread = @widened@virtual_block * @threads@ + threadIdx.x;
if (global_thread >= @global_threads@) return;
const int channel = int(global_thread / @image_tiles@), image_tile = int(global_thread % @image_tiles@);
const int image = image_tile / @tiles@, tile = image_tile % @tiles@;
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
@thread_tile@
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
// A block computes tiles of @channels_each@ neighbouring channels of some images, or of rows of one
// image. They pass through shared memory, so that the epilogue's accesses coalesce.
const int group = virtual_block / @channel_groups@, channel_group = virtual_block % @channel_groups@;
const int first_image = group / @bands@ * @images_each@, band = group % @bands@;
float* const shared = reinterpret_cast<float*>(smem);
{
  const int local = threadIdx.x % @tiles_each@;
  const int channel = channel_group * @channels_each@ + threadIdx.x / @tiles_each@;
  const int image = first_image + local / @band_tiles@, tile = band * @band_tiles@ + local % @band_tiles@;
  if (threadIdx.x < @active@ && image < @images@ && tile < @tiles@) {
    const int image_tile = image * @tiles@ + tile;
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
  const unsigned local_image = e / @run@, run_strip = e % @run@;
  const int image = first_image + local_image,
            strip = channel_group * @group_strips@ + band * @run@ + run_strip;
  if (((turn + 1) * @threads@ <= @vectors@ || e < @vectors@)@in_bounds@) {
    @strip_load@
    @strip_source@
#pragma unroll
    for (int v = 0; v < @lanes@; v++) {
      @lane_source@
      const float total = from[@lane_step@];
      @map@
    }
    @store@
  }
}
//@ source
const unsigned at = band * @run_elements@u + run_strip * @lanes@u@lane@;
const unsigned y = at % @plane_elements@u / @width@u, x = at % @width@u;
const float* const from = shared + (y % @lines@u * @lines@u + x % @lines@u) * @pitch@u +
                          at / @plane_elements@u * @tiles_each@u + local_image * @band_tiles@u +
                          (y / @lines@u - band * @band_rows@u) * @columns@u + x / @lines@u;
