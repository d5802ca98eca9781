// conv_direct: a convolution of few channels. A block computes rows of one image's result: it brings
// the part of the input that they need into shared memory, padding included, and all weights. A thread
// computes `run` neighbours of a row in `outputs` channels from an equal share of the input's channels;
// the shares of a result are added in shared memory, in a fixed order.
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
    if ((@some_weights@) && m < @m@) {
      @load_weight@
      weight[i] = @weight@;
    }
  }
#pragma unroll
  for (int i = 0; i < @weight_loads@; i++) {
    const int e = first + i * @threads@;
    const int m = e / @k@, k = e % @k@;
    if (@some_weights@) weights[k * @weight_pitch@ + m / @outputs@ * @lanes_m@ + m % @outputs@] = weight[i];
  }
}
@cleared@
put_patch(threadIdx.x);
@others@
__syncthreads();
const int spot = threadIdx.x % @spots@, share = threadIdx.x / (@spots@ * @teams@);
const int team = threadIdx.x / @spots@ % @teams@;
const int row = spot / @runs@, column = spot % @runs@ * @run@;
float sum[@outputs@][@run@] = {};
if (share < @shares@) {
  const float* from = patch + share * @channels@ * @plane_pitch@ + row * (@stride_y@ * @pitch@) +
                      column * @stride_x@;
  const float* by = weights + share * @channels@ * @taps@ * @weight_pitch@ + team * @lanes_m@;
#pragma unroll 1
  for (int channel = 0; channel < @channels@; channel++) {
#pragma unroll
    for (int line = 0; line < @taps_y@; line++) {
      float near[@reach@];
#pragma unroll
      for (int j = 0; j < @reach@; j++) near[j] = from[line * (@dilation_y@ * @pitch@) + j];
#pragma unroll
      for (int tap = 0; tap < @taps_x@; tap++) {
        float weight[@lanes_m@];
#pragma unroll
        for (int q = 0; q < @lanes_m@; q += @fragment@) {
          const tgc_vector<float, @fragment@> part = *reinterpret_cast<const tgc_vector<float, @fragment@>*>(
              by + (line * @taps_x@ + tap) * @weight_pitch@ + q);
#pragma unroll
          for (int lane = 0; lane < @fragment@; lane++) weight[q + lane] = part.at[lane];
        }
#pragma unroll
        for (int q = 0; q < @outputs@; q++)
#pragma unroll
          for (int j = 0; j < @run@; j++)
            sum[q][j] =
                tgc_multiply_add(weight[q], near[j * @stride_x@ + tap * @dilation_x@], sum[q][j]);
      }
    }
    from += @plane_pitch@;
    by += @taps@ * @weight_pitch@;
  }
}
__syncthreads();
float* const shared_sum = reinterpret_cast<float*>(smem);
if (share < @shares@) {
#pragma unroll
  for (int q = 0; q < @outputs@; q++)
#pragma unroll
    for (int j = 0; j < @run@; j++)
      if (team * @outputs@ + q < @m@ && column + j < @row_length@)
        shared_sum[(share * @m@ + team * @outputs@ + q) * @block_places@ + row * @row_length@ + column + j] =
            sum[q][j];
}
__syncthreads();
#pragma unroll @turns@
for (int e = threadIdx.x; e < @m@ * @block_places@ / @lanes@; e += @threads@) {
  const int m = e / (@block_places@ / @lanes@);
  const int place = row_first * (@row_length@ / @lanes@) + e % (@block_places@ / @lanes@);
  if (place >= @image_places@ / @lanes@) continue;
  const int strip = image * (@image_places@ / @lanes@) + place;
  @row@
  @strip_load@
#pragma unroll
  for (int v = 0; v < @lanes@; v++) {
    float total = shared_sum[e * @lanes@ + v];
#pragma unroll
    for (int other = 1; other < @shares@; other++)
      total += shared_sum[other * @m@ * @block_places@ + e * @lanes@ + v];
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
float hold_patch[@loads@ * @wide@];
auto fetch_patch = [&](int first) {
#pragma unroll
  for (int i = 0; i < @loads@; i++) {
    const int e = first + i * @threads@;
    const int channel = e / @plane@, line = e / @strips@ % @lines@ + @first_line@, x = e % @strips@;
    const int y = row_first * @stride_y@ + line - @top@;
#pragma unroll
    for (int v = 0; v < @zeroed@; v++) hold_patch[i * @wide@ + v] = 0.0f;
    if (@some@@inside@) {
      @load@
#pragma unroll
      for (int v = 0; v < @wide@; v++) {
        @map@
        hold_patch[i * @wide@ + v] = @value@;
      }
    }
  }
};
auto put_patch = [&](int first) {
#pragma unroll
  for (int i = 0; i < @loads@; i++) {
    const int e = first + i * @threads@;
    const int channel = e / @plane@, line = e / @strips@ % @lines@ + @first_line@, x = e % @strips@;
    const int y = row_first * @stride_y@ + line - @top@;
    if (@some@@put_inside@)
#pragma unroll
      for (int v = 0; v < @wide@; v++)
        patch[channel * @plane_pitch@ + line * @pitch@ + x * @wide@ + v + @left@] =
            hold_patch[i * @wide@ + v];
  }
};
//@ others
#pragma unroll 1
for (int first = threadIdx.x + @step@; first < @elements@; first += @step@) {
  fetch_@what@(first);
  put_@what@(first);
}
