// conv_direct: a convolution of few channels. A block computes rows of one image's output: it loads
// the patch of the input that they need into shared memory, padding included, and all weights. A thread
// computes `run` neighbours of a row in `outputs` channels from an equal share of the input's channels;
// the shares of an output are added in shared memory, in a fixed order.
//
// Versions, the input gradient of 6 to 16 channels, 5 x 5, 128 x 14 x 14 float32 on an H200, us:
//   1. an implicit matrix product: each element is loaded once for every tap      13.7
//   2. the image in shared memory, scalar loads that test for the padding         10.4
//   3. vectors of what lies inside the padding, over shared memory cleared before  6.9
//@ body
const int image = virtual_block / @bands@, row_first = virtual_block % @bands@ * @rows@;
float* const patch = reinterpret_cast<float*>(smem);
float* const weights = patch + @patch@;
@outer@
@image@
fetch_patch(threadIdx.x);
@clear@
@weight_loop@
  float weight[@weight_loads@];
#pragma unroll
  for (int i = 0; i < @weight_loads@; i++) {
    const int e = first + i * @threads@;
    const int m = e / @k@, k = e % @k@;
    weight[i] = 0.0f;
    if ((@weight_in_bounds@) && m < @m@) {
      @load_weight@
      weight[i] = @weight@;
    }
  }
#pragma unroll
  for (int i = 0; i < @weight_loads@; i++) {
    const int e = first + i * @threads@;
    const int m = e / @k@, k = e % @k@;
    if (@weight_in_bounds@)
      weights[k * @weight_pitch@ + m / @outputs@ * @lanes_m@ + m % @outputs@] = weight[i];
  }
}
@cleared@
put_patch(threadIdx.x);
@further_loads@
__syncthreads();
const int position = threadIdx.x % @positions@, share = threadIdx.x / (@positions@ * @channel_groups@);
const int channel_group = threadIdx.x / @positions@ % @channel_groups@;
const int row = position / @runs@, column = position % @runs@ * @run@;
float sum[@outputs@][@run@] = {};
if (share < @shares@) {
  const float* patch_from = patch + share * @channels@ * @plane_pitch@ + row * (@stride_y@ * @pitch@) +
                      column * @stride_x@;
  const float* weights_from =
      weights + share * @channels@ * @taps@ * @weight_pitch@ + channel_group * @lanes_m@;
#pragma unroll 1
  for (int channel = 0; channel < @channels@; channel++) {
#pragma unroll
    for (int tap_y = 0; tap_y < @taps_y@; tap_y++) {
      float inputs[@reach@];
#pragma unroll
      for (int j = 0; j < @reach@; j++) inputs[j] = patch_from[tap_y * (@dilation_y@ * @pitch@) + j];
#pragma unroll
      for (int tap_x = 0; tap_x < @taps_x@; tap_x++) {
        float weight[@lanes_m@];
#pragma unroll
        for (int q = 0; q < @lanes_m@; q += @fragment@) {
          const tgc_vector<float, @fragment@> fragment =
              *reinterpret_cast<const tgc_vector<float, @fragment@>*>(
                  weights_from + (tap_y * @taps_x@ + tap_x) * @weight_pitch@ + q);
#pragma unroll
          for (int lane = 0; lane < @fragment@; lane++) weight[q + lane] = fragment.at[lane];
        }
#pragma unroll
        for (int q = 0; q < @outputs@; q++)
#pragma unroll
          for (int j = 0; j < @run@; j++)
            sum[q][j] =
                tgc_multiply_add(weight[q], inputs[j * @stride_x@ + tap_x * @dilation_x@], sum[q][j]);
      }
    }
    patch_from += @plane_pitch@;
    weights_from += @taps@ * @weight_pitch@;
  }
}
__syncthreads();
float* const shared_sum = reinterpret_cast<float*>(smem);
if (share < @shares@) {
#pragma unroll
  for (int q = 0; q < @outputs@; q++)
#pragma unroll
    for (int j = 0; j < @run@; j++)
      if (channel_group * @outputs@ + q < @m@ && column + j < @row_length@)
        shared_sum[(share * @m@ + channel_group * @outputs@ + q) * @block_pixels@ +
                   row * @row_length@ + column + j] = sum[q][j];
}
__syncthreads();
#pragma unroll @turns@
for (int e = threadIdx.x; e < @m@ * @block_pixels@ / @lanes@; e += @threads@) {
  const int m = e / (@block_pixels@ / @lanes@);
  const int pixel_strip = row_first * (@row_length@ / @lanes@) + e % (@block_pixels@ / @lanes@);
  if (pixel_strip >= @image_pixels@ / @lanes@) continue;
  const int strip = image * (@image_pixels@ / @lanes@) + pixel_strip;
  @row@
  @strip_load@
#pragma unroll
  for (int v = 0; v < @lanes@; v++) {
    float total = shared_sum[e * @lanes@ + v];
#pragma unroll
    for (int other = 1; other < @shares@; other++)
      total += shared_sum[other * @m@ * @block_pixels@ + e * @lanes@ + v];
    @map@
  }
  @store@
}
//@ clear
#pragma unroll 4
for (int e = threadIdx.x; e < @vectors@; e += @threads@)
  reinterpret_cast<tgc_vector<float, 4>*>(patch)[e] = tgc_vector<float, 4>{};
//@ image
// Rows of an image, from `row_first` on, to shared memory: first into registers, then there.
float prefetch_patch[@loads@ * @wide@];
auto fetch_patch = [&](int first) {
#pragma unroll
  for (int i = 0; i < @loads@; i++) {
    const int e = first + i * @threads@;
    const int channel = e / @plane@, patch_row = e / @strips@ % @patch_rows@ + @first_patch_row@,
              x = e % @strips@;
    const int y = row_first * @stride_y@ + patch_row - @top@;
#pragma unroll
    for (int v = 0; v < @zeroed@; v++) prefetch_patch[i * @wide@ + v] = 0.0f;
    if (@load_in_bounds@@image_rows@) {
      @load@
#pragma unroll
      for (int v = 0; v < @wide@; v++) {
        @map@
        prefetch_patch[i * @wide@ + v] = @value@;
      }
    }
  }
};
auto put_patch = [&](int first) {
#pragma unroll
  for (int i = 0; i < @loads@; i++) {
    const int e = first + i * @threads@;
    const int channel = e / @plane@, patch_row = e / @strips@ % @patch_rows@ + @first_patch_row@,
              x = e % @strips@;
    const int y = row_first * @stride_y@ + patch_row - @top@;
    if (@load_in_bounds@@put_rows@)
#pragma unroll
      for (int v = 0; v < @wide@; v++)
        patch[channel * @plane_pitch@ + patch_row * @pitch@ + x * @wide@ + v + @left@] =
            prefetch_patch[i * @wide@ + v];
  }
};
//@ further_loads
#pragma unroll 1
for (int first = threadIdx.x + @step@; first < @elements@; first += @step@) {
  fetch_@what@(first);
  put_@what@(first);
}
