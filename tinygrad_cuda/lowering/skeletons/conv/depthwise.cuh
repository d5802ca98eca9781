// conv_depthwise: a convolution of few channels a group, its input gradient and its weight gradient.
// They multiply about as often as they read: memory is their limit. 128 x 128 x 28 x 28 float32 with
// 3 x 3 windows moves 103 MB in each of the three passes, 26 us at an H200's 4.0e12 bytes a second.
//
// Grid of the first two: one thread for `rows` x `run` results of a channel, or of `lanes` neighbouring
// channels where these lie last; 256 threads a block. Rows of the input pass through registers: each
// is loaded once, in vectors of 16 bytes, for all results of a thread that read it. Elements between
// which an input gradient has zeros are the only ones loaded, and their taps the only ones multiplied.
//
// Grid of the weight gradient: a block for some channels and a slice of all images. A thread sums every
// tap over its results, threads add theirs in a tree, a second stage adds the slices.
//
// Versions, 128 x 128 x 28 x 28 bfloat16 with 3 x 3 windows on an H200, us, forward and weight gradient
// (cuDNN 29, 40; 51 MB, 13 us at 4.0e12 bytes a second):
//   1. implicit matrix products, a matrix of one row for each group              155   475
//   2. a map over shifted images, nine loads with tests a result; a reduction
//      for each tap                                                               70   208
//   3. both images are read once; channels first                                 34    39
//      channels last                                                             48   114
//   4. this one, channels last: loads have predicates, not branches with a conversion in them,
//      after which each waited for the one before it                              42    37
//@ body
@position@
@leave@
@outer@
@type@ sum[@rows@][@width@] = {};
@sums@
#pragma unroll
for (int r = 0; r < @rows@; r++) {
  const int row = row_index * @rows@ + r;
  @row_guard@
  @row@
#pragma unroll
  for (int strip = 0; strip < @strips@; strip++) {
    const int column = column_index * @strips@ + strip;
    @column_guard@
    @strip_load@
#pragma unroll
    for (int v = 0; v < @lanes@; v++) {
      const @type@ total = sum[r][strip * @lanes@ + v];
      @map@
    }
    @store@
  }
}
//@ sums
const int channel = @channel@;
@type@ weight[@weights@];
@load_weights@
@input_rows@
//@ inner_loop
#pragma unroll 1
for (int inner = 0; inner < @inner@; inner++) {
  @sums@
}
//@ images_first
const @index@ position = @widened@virtual_block * @threads@ + threadIdx.x;
const int column_index = int(position % @columns@), row_index = int(position / @columns@ % @row_count@);
const int output = int(position / @plane@ % @outputs@), image = int(position / @plane_outputs@);
//@ channels_last
// A block has neighbouring channels, whose weights it puts into shared memory, tap by tap.
const int first_output = virtual_block % @channel_blocks@ * @vectors@;
const int output = first_output + threadIdx.x % @vectors@, strip_in_block = threadIdx.x / @vectors@;
const @index@ position = @widened@(virtual_block / @channel_blocks@) * @block_strips@ + strip_in_block;
const int column_index = int(position % @columns@), row_index = int(position / @columns@ % @row_count@);
const int image = int(position / @plane@);
@type@* const shared = reinterpret_cast<@type@*>(smem);
for (int e = threadIdx.x; e < @all_weights@; e += @threads@) {
  const int o = first_output * @lanes@ + e % @block_outputs@;
  @which@
  if (o < @whole_outputs@) {
    @load@
    shared[e] = @value@;
  }
}
__syncthreads();
//@ weights
#pragma unroll
for (int tap = 0; tap < @taps@; tap++) {
  @load@
  weight[tap] = @value@;
}
//@ shared_weights
#pragma unroll
for (int tap = 0; tap < @taps@; tap++) {
  const tgc_vector<@type@, @fragment@>* const from = reinterpret_cast<const tgc_vector<@type@, @fragment@>*>(
      shared + @shared_tap@ * @block_outputs@ + (output - first_output) * @lanes@);
#pragma unroll
  for (int v = 0; v < @lanes@; v++) weight[tap * @lanes@ + v] = from[v / @fragment@].at[v % @fragment@];
}
//@ input_rows
#pragma unroll
for (int i = 0; i < @reach@; i++) {
  const int y = row_index * @step_y@ + i - @above@;
  @type@ inputs[@inputs@] = {};
#pragma unroll
  for (int k = 0; k < @loads@; k++) {
    const int x = column_index * @step_x@ + k - @before@;
    @inside@
      @load@
#pragma unroll
      for (int v = 0; v < @wide@; v++) {
        @map@
        inputs[k * @wide@ + v] = @value@;
      }
    }
  }
#pragma unroll
  for (int tap_y = 0; tap_y < @taps_y@; tap_y++) {
    // Of the rows of results, the one that reads row i with this tap.
    const int down = i * @spread_y@ - tap_y * @dilation_y@@shift_y@, r = down / @stride_y@;
    if (down < 0 || r >= @rows@) continue;
    @no_row@
    @row_guard@
#pragma unroll
    for (int tap_x = 0; tap_x < @taps_x@; tap_x++) {
#pragma unroll
      for (int j = 0; j < @run@; j++) {
        const int across = j * @stride_x@ + tap_x * @dilation_x@@shift_x@;
        @no_column@
        @column_guard@
#pragma unroll
        for (int v = 0; v < @lanes@; v++)
          @sum@ = tgc_multiply_add(@factor@, inputs[across / @spread_x@ * @lanes@ + v], @sum@);
      }
    }
  }
}
//@ weight_gradient
const int k_slice = virtual_block % @slices@, first_pair = virtual_block / @slices@ * @channels@;
const int in_block = @in_block@, part = @part@, pair = @pair@;
@outer@
@type@ sum[@sums@] = {};
if (pair < @pairs@) {
  const int output = pair / @inner@, channel = @channel@;
#pragma unroll 1
  for (int job = @first_job@; job < @jobs@; job += @turn@) {
    const int column_index = job % @columns@, row_index = job / @columns@ % @row_count@;
    const int image = job / @plane@;
    @type@ cotangent[@rows@][@width@] = {};
#pragma unroll
    for (int r = 0; r < @rows@; r++) {
      const int row = row_index * @rows@ + r;
#pragma unroll
      for (int strip = 0; strip < @strips@; strip++) {
        const int column = column_index * @strips@ + strip;
        @inside@
          @load@
#pragma unroll
          for (int v = 0; v < @lanes@; v++) {
            @map@
            cotangent[r][strip * @lanes@ + v] = @value@;
          }
        }
      }
    }
    @input_rows@
  }
}
@type@* const shared = reinterpret_cast<@type@*>(smem);
#pragma unroll 1
for (int half = @parts@ / 2; half > 0; half /= 2) {
  const int slot = @slot@;
  if (part >= half && part < 2 * half) {
#pragma unroll
    for (int k = 0; k < @sums@; k++) shared[k * @half_threads@ + slot] = sum[k];
  }
  __syncthreads();
  if (part < half) {
#pragma unroll
    for (int k = 0; k < @sums@; k++) sum[k] += shared[k * @half_threads@ + slot];
  }
  __syncthreads();
}
if (part == 0) {
#pragma unroll
  for (int k = 0; k < @sums@; k++) shared[(in_block * @vector@ + k % @vector@) * @taps@ + k / @vector@] = sum[k];
}
__syncthreads();
for (int e = threadIdx.x; e < @block_sums@; e += @threads@) {
  const int weight = first_pair * @vector_taps@ + e;
  if (weight >= @numel@) break;
  const int group = weight / @group@, m = weight / @n@ % @m@, strip = weight % @n@;
  const @type@ total = shared[e];
  @epilogue@
}
