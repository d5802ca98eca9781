// conv_weight_gradient: the gradient of a small convolution kernel. A block sums over bands of rows of
// images: it loads a band of the cotangent and of the input into shared memory. A thread has `outputs`
// channels of the cotangent and one row of taps of one channel of the input, and loops over its share
// of the rows; the shares are added in shared memory, in a fixed order.
//
// Versions, both kernels of LeNet on an H200 (commit cf5676d):
//   1. implicit matrix products, which load each element of the input once for every tap: 13.3 us in
//      one launch with the gradient of the input
//   2. this one: a block loads each element once, and a thread reuses it for a row of taps
//@ body
const int k_slice = virtual_block;
float* const patch = reinterpret_cast<float*>(smem);
float* const cotangent = patch + @patch@;
@outer@
const int tap_row = threadIdx.x % @tap_rows@, share = threadIdx.x / (@tap_rows@ * @channel_groups@);
const int channel_group = threadIdx.x / @tap_rows@ % @channel_groups@;
float sum[@outputs@][@taps_x@] = {};
#pragma unroll 4
for (int e = threadIdx.x; e < @vectors@; e += @threads@)
  reinterpret_cast<tgc_vector<float, 4>*>(patch)[e] = tgc_vector<float, 4>{};
float prefetch_cotangent[@cotangent_loads@ * @cotangent_wide@];
#pragma unroll 1
for (int job = k_slice * @jobs@; job < (k_slice + 1) * @jobs@ && job < @all_jobs@; job++) {
  const int image = job / @bands@, row_first = job % @bands@ * @rows@;
  @image@
  auto fetch_cotangent = [&](int first) {
#pragma unroll
    for (int i = 0; i < @cotangent_loads@; i++) {
      const int e = first + i * @threads@;
      const int m = e / @cotangent_plane@, row = row_first + e / @cotangent_strips@ % @rows@;
      const int strip = e % @cotangent_strips@;
      if (@cotangent_in_bounds@) {
        @cotangent_load@
#pragma unroll
        for (int v = 0; v < @cotangent_wide@; v++) {
          @cotangent_map@
          prefetch_cotangent[i * @cotangent_wide@ + v] = @cotangent_value@;
        }
      }
    }
  };
  auto put_cotangent = [&](int first) {
#pragma unroll
    for (int i = 0; i < @cotangent_loads@; i++) {
      const int e = first + i * @threads@;
      const int m = e / @cotangent_plane@, row = e / @cotangent_strips@ % @rows@;
      if (@cotangent_in_bounds@)
#pragma unroll
        for (int v = 0; v < @cotangent_wide@; v++)
          cotangent[(m * @rows@ + row) * @cotangent_pitch@ + e % @cotangent_strips@ * @cotangent_wide@ + v] =
              prefetch_cotangent[i * @cotangent_wide@ + v];
    }
  };
  fetch_patch(threadIdx.x);
  fetch_cotangent(threadIdx.x);
  __syncthreads();
  put_patch(threadIdx.x);
  put_cotangent(threadIdx.x);
  @further_patch@
  @further_cotangent@
  __syncthreads();
  if (share < @shares@) {
    const float* const patch_from = patch + tap_row / @taps_y@ * @plane_pitch@ +
                              tap_row % @taps_y@ * (@dilation_y@ * @pitch@);
    const float* const cotangent_from =
        cotangent + channel_group * (@outputs@ * @rows@ * @cotangent_pitch@);
#pragma unroll 1
    for (int row = share; row < @rows@; row += @shares@) {
#pragma unroll @runs_unrolled@
      for (int run = 0; run < @runs@; run++) {
        float inputs[@reach@];
#pragma unroll
        for (int j = 0; j < @reach@; j++)
          inputs[j] = patch_from[row * (@stride_y@ * @pitch@) + run * (@run@ * @stride_x@) + j];
#pragma unroll
        for (int q = 0; q < @outputs@; q++) {
          float cotangents[@run@];
#pragma unroll
          for (int j = 0; j < @run@; j += @fragment@) {
            const tgc_vector<float, @fragment@> fragment =
                *reinterpret_cast<const tgc_vector<float, @fragment@>*>(
                    cotangent_from + (q * @rows@ + row) * @cotangent_pitch@ + run * @run@ + j);
#pragma unroll
            for (int lane = 0; lane < @fragment@; lane++) cotangents[j + lane] = fragment.at[lane];
          }
#pragma unroll
          for (int tap_x = 0; tap_x < @taps_x@; tap_x++)
#pragma unroll
            for (int j = 0; j < @run@; j++)
              sum[q][tap_x] = tgc_multiply_add(
                  cotangents[j], inputs[j * @stride_x@ + tap_x * @dilation_x@], sum[q][tap_x]);
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
    for (int tap_x = 0; tap_x < @taps_x@; tap_x++)
      if (channel_group * @outputs@ + q < @m@)
        shared_sum[(share * @m@ + channel_group * @outputs@ + q) * @n@ + tap_row * @taps_x@ + tap_x] =
            sum[q][tap_x];
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
