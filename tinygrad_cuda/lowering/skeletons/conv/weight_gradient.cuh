// conv_weight_gradient: the gradient of a small convolution kernel. A block takes bands of rows of
// images: it brings a band of the cotangent and of the input into shared memory. A thread has `outputs`
// channels of the cotangent and one line of taps of one channel of the input, and walks over its share
// of the rows; the shares are added in shared memory, in a fixed order.
//
// Versions, both kernels of LeNet on an H200 (commit cf5676d):
//   1. implicit matrix products, which load each element of the input once for every tap: 13.3 us in
//      one launch with the gradient of the input
//   2. this one: a block loads each element once, and a thread reuses it for a line of taps
//@ body
const int part = virtual_block;
float* const patch = reinterpret_cast<float*>(smem);
float* const slope = patch + @patch@;
@outer@
const int line_of = threadIdx.x % @lines_n@, share = threadIdx.x / (@lines_n@ * @teams@);
const int team = threadIdx.x / @lines_n@ % @teams@;
float sum[@outputs@][@taps_x@] = {};
#pragma unroll 4
for (int e = threadIdx.x; e < @vectors@; e += @threads@)
  reinterpret_cast<tgc_vector<float, 4>*>(patch)[e] = tgc_vector<float, 4>{};
float hold_slope[@slope_loads@ * @slope_wide@];
#pragma unroll 1
for (int job = part * @jobs@; job < (part + 1) * @jobs@ && job < @all_jobs@; job++) {
  const int image = job / @bands@, row_first = job % @bands@ * @rows@;
  @image@
  auto fetch_slope = [&](int first) {
#pragma unroll
    for (int i = 0; i < @slope_loads@; i++) {
      const int e = first + i * @threads@;
      const int m = e / @slope_plane@, row = row_first + e / @slope_strips@ % @rows@;
      const int strip = e % @slope_strips@;
      if (@slope_some@) {
        @slope_load@
#pragma unroll
        for (int v = 0; v < @slope_wide@; v++) {
          @slope_map@
          hold_slope[i * @slope_wide@ + v] = @slope_value@;
        }
      }
    }
  };
  auto put_slope = [&](int first) {
#pragma unroll
    for (int i = 0; i < @slope_loads@; i++) {
      const int e = first + i * @threads@;
      const int m = e / @slope_plane@, row = e / @slope_strips@ % @rows@;
      if (@slope_some@)
#pragma unroll
        for (int v = 0; v < @slope_wide@; v++)
          slope[(m * @rows@ + row) * @slope_pitch@ + e % @slope_strips@ * @slope_wide@ + v] =
              hold_slope[i * @slope_wide@ + v];
    }
  };
  fetch_patch(threadIdx.x);
  fetch_slope(threadIdx.x);
  __syncthreads();
  put_patch(threadIdx.x);
  put_slope(threadIdx.x);
  @other_patch@
  @other_slope@
  __syncthreads();
  if (share < @shares@) {
    const float* const from = patch + line_of / @taps_y@ * @plane_pitch@ +
                              line_of % @taps_y@ * (@dilation_y@ * @pitch@);
    const float* const by = slope + team * (@outputs@ * @rows@ * @slope_pitch@);
#pragma unroll 1
    for (int row = share; row < @rows@; row += @shares@) {
#pragma unroll @runs_unrolled@
      for (int run = 0; run < @runs@; run++) {
        float near[@reach@];
#pragma unroll
        for (int j = 0; j < @reach@; j++)
          near[j] = from[row * (@stride_y@ * @pitch@) + run * (@run@ * @stride_x@) + j];
#pragma unroll
        for (int q = 0; q < @outputs@; q++) {
          float slopes[@run@];
#pragma unroll
          for (int j = 0; j < @run@; j += @fragment@) {
            const tgc_vector<float, @fragment@> piece =
                *reinterpret_cast<const tgc_vector<float, @fragment@>*>(
                    by + (q * @rows@ + row) * @slope_pitch@ + run * @run@ + j);
#pragma unroll
            for (int lane = 0; lane < @fragment@; lane++) slopes[j + lane] = piece.at[lane];
          }
#pragma unroll
          for (int tap = 0; tap < @taps_x@; tap++)
#pragma unroll
            for (int j = 0; j < @run@; j++)
              sum[q][tap] = tgc_multiply_add(
                  slopes[j], near[j * @stride_x@ + tap * @dilation_x@], sum[q][tap]);
        }
      }
    }
  }
}
__syncthreads();
float* const shared_sum = reinterpret_cast<float*>(smem);
if (share < @shares@) {
#pragma unroll
  for (int q = 0; q < @outputs@; q++)
#pragma unroll
    for (int tap = 0; tap < @taps_x@; tap++)
      if (team * @outputs@ + q < @m@)
        shared_sum[(share * @m@ + team * @outputs@ + q) * @n@ + line_of * @taps_x@ + tap] =
            sum[q][tap];
}
__syncthreads();
for (int e = threadIdx.x; e < @m@ * @n@; e += @threads@) {
  const int m = e / @n@, strip = e % @n@;
  @row@
  @strip_load@
#pragma unroll
  for (int v = 0; v < 1; v++) {
    float total = shared_sum[e];
#pragma unroll @shares_unrolled@
    for (int other = 1; other < @shares@; other++) total += shared_sum[other * @m@ * @n@ + e];
    @map@
  }
  @store@
}
