// contract: C[m, n] = epilogue(sum over k of A(m, k) * B(k, n)), A and B given by their loads.
// The next tile of A and B is prefetched into registers while this one, in shared memory, is
// multiplied; a streamed B stays in the registers of the thread that loaded it. Terms of a load's
// index that depend on the strided axis alone are in an index table in shared memory (loads.py).
// A warp is `lanes_m` x `lanes_n` threads; a thread computes a register tile of `rows` x `cols`
// outputs in quads of 4 x 4, the quads of a warp interleaved. Where a tile needs fewer threads than
// a block has, each group of threads has its own values of k, and shared memory adds their sums in
// a fixed order.
//
// Versions, 4096^3 float32 on an H200, TFLOP/s; cuBLAS 51.0 (lab/matmul.cu):
//   1. tiles of 128 x 256                                                    41.7 to 45
//   2. tiles of 128 x 128 x 16, filled by cp.async                           43 to 44
//   3. filled through registers, 256 threads with 8 x 8 sums each            45.6
//   4. 128 threads with 16 x 8 sums each, 2 blocks a multiprocessor          47.7
// As generated, version 3 leaves registers for a prologue. Addresses of outputs that are recomputed
// after the loop (`recompute`), so that none is spilled within it, took 3000 us to 2877.
// Tiers, by tile_heuristics.py: small tiles for 512^3 (21.6 TFLOP/s by hand, cuBLAS 20.0), split-K
// with a second stage (`join`), a streamed B for few rows.
//@ body
@tile@
typedef tgc_vector<@type@, @fragment@> fragment;
@type@* const shared_a = reinterpret_cast<@type@*>(smem);
@type@* const shared_b = shared_a + 2 * @tile_k@ * @stride_a@;
@type@ prefetch_a[@loads_a@ * @width_a@], prefetch_b[@loads_b@ * @width_b@];
@type@ sum[@rows@][@cols@] = {};
@type@ a[2][@rows@], b[2][@cols@];
@declare_column@
const int k_begin = k_slice * @chunk@;
const int k_end = k_begin + @chunk@ < @k@ ? k_begin + @chunk@ : @k@;
@outer@
@setup@

auto fetch = [&](int k_first) {
  {
    @fetch_a@
  }
  {
    @fetch_b@
  }
};
auto put = [&](int buffer) {
  @put_a@
  @put_b@
};
auto read = [&](int slot, int buffer, int step) {
  const int shared_row = buffer * @tile_k@ + step * @groups@ + k_group;
#pragma unroll
  for (int i = 0; i < @rows@; i += @fragment@) {
    const fragment fragment_a = *reinterpret_cast<const fragment*>(
        shared_a + shared_row * @stride_a@ + lane_m + i / 4 * (@lanes_m@ * 4) + i % 4);
#pragma unroll
    for (int q = 0; q < @fragment@; q++) a[slot][i + q] = fragment_a.at[q];
  }
  @read_b@
};

fetch(k_begin);
put(0);
__syncthreads();
read(0, 0, 0);
int buffer = 0;
#pragma unroll 1
for (int k_first = k_begin; k_first < k_end; k_first += @tile_k@) {
  @copy_column@
  @fetch_next@
#pragma unroll
  for (int step = 0; step < @steps@; step++) {
    if (step + 1 < @steps@) {
      read((step + 1) % 2, buffer, step + 1);
    @put_next@
    }
#pragma unroll
    for (int i = 0; i < @rows@; i++)
#pragma unroll
      for (int back = 0; back < @cols@; back++) {
        const int j = i % 2 ? @cols@ - 1 - back : back;
        sum[i][j] = tgc_multiply_add(a[step % 2][i], @factor@, sum[i][j]);
      }
  }
  buffer ^= 1;
}
@results@
//@ put_next
} else {  // so early that the last products hide the latency of shared memory
  put(buffer ^ 1);
  __syncthreads();
  read(0, buffer ^ 1, 0);
//@ tile
const int tile_index = @block@ % @tiles@;
const int batch = @block@ / @tiles@ % @batches@;
const int k_slice = @k_slice@;
const int band = tile_index / (@band@ * @tiles_n@) * @band@;
const int band_rows = @tiles_m@ - band < @band@ ? @tiles_m@ - band : @band@;
const int tile_m = band + tile_index % (@band@ * @tiles_n@) % band_rows;
const int tile_n = tile_index % (@band@ * @tiles_n@) / band_rows;
const int tile_thread = @thread@ % @tile_threads@, k_group = @k_group@;
const int lane_m = tile_thread / 32 / @warps_n@ * (@lanes_m@ * @rows@) + tile_thread % 32 / @lanes_n@ * 4;
const int lane_n =
    tile_thread / 32 % @warps_n@ * (@lanes_n@ * @cols@) + tile_thread % 32 % @lanes_n@ * @quad@;
//@ read
#pragma unroll
for (int j = 0; j < @cols@; j += @fragment@) {
  const fragment fragment_b = *reinterpret_cast<const fragment*>(
      shared_b + shared_row * @stride_b@ + lane_n + j / 4 * (@lanes_n@ * 4) + j % 4);
#pragma unroll
  for (int q = 0; q < @fragment@; q++) b[slot][j + q] = fragment_b.at[q];
}
//@ copy_column
#pragma unroll
for (int q = 0; q < @tile_k@; q++) column_b[q] = prefetch_b[q];
//@ recompute
{
  const int opaque_block = tgc_again(virtual_block), opaque_thread = tgc_again(threadIdx.x);
  @tile@
  @results@
}
//@ registers
#pragma unroll
for (int i = 0; i < @rows@; i++) {
  const int m = tile_m * @tile_m@ + lane_m + i / 4 * (@lanes_m@ * 4) + i % 4;
  if (m >= @m@) continue;
  @row@
#pragma unroll
  for (int j = 0; j < @cols@; j += @lanes@) {
    const int strip = (tile_n * @tile_n@ + lane_n + j / 4 * (@lanes_n@ * 4) + j % 4) / @lanes@;
    if (strip >= @strips@) continue;
    @load@
#pragma unroll
    for (int v = 0; v < @lanes@; v++) {
      const @type@ total = sum[i][j + v];
      @map@
    }
    @store@
  }
}
//@ shared
@type@* const shared_sum = reinterpret_cast<@type@*>(smem);
__syncthreads();
#pragma unroll
for (int i = 0; i < @rows@; i++)
#pragma unroll
  for (int j = 0; j < @cols@; j++)
    shared_sum[(k_group * @tile_m@ + lane_m + i / 4 * (@lanes_m@ * 4) + i % 4) * @tile_n@ + lane_n +
               j / 4 * (@lanes_n@ * 4) + j % 4] = sum[i][j];
__syncthreads();
#pragma unroll
for (int turn = 0; turn < @turns@; turn++) {
  const int e = turn * @threads@ + threadIdx.x;
  if (e >= @tile_m@ * @tile_n@ / @lanes@) continue;
  const int m = tile_m * @tile_m@ + e / (@tile_n@ / @lanes@);
  const int strip = tile_n * (@tile_n@ / @lanes@) + e % (@tile_n@ / @lanes@);
  if (m >= @m@ || strip >= @strips@) continue;
  @row@
  @load@
#pragma unroll
  for (int v = 0; v < @lanes@; v++) {
    @type@ total = shared_sum[e * @lanes@ + v];
#pragma unroll
    for (int other = 1; other < @groups@; other++) {
      const @type@ addend = shared_sum[other * @tile_m@ * @tile_n@ + e * @lanes@ + v];
      total = @add@;
    }
    @map@
  }
  @store@
}
//@ table
tgc_vector<int, @words@>* const table_@side@ =
    reinterpret_cast<tgc_vector<int, @words@>*>(smem + @shared_offset@);
for (int e = threadIdx.x; e < @size@; e += @threads@) {
  const int row = e, @strided@ = @strided_first@ + row;
  tgc_vector<int, @words@> entry;
  @columns@
  table_@side@[e] = entry;
}
//@ fetch
@thread@
#pragma unroll
for (int i = 0; i < @loads@; i++) {
  const int row = i * @rows@ + @row@;
  const int @strided@ = @strided_first@ + row;
  @entry@
#pragma unroll
  for (int v = 0; v < @width@; v++) prefetch_@side@[i * @width@ + v] = @zero@;
  if (@in_bounds@) {
    @load@
#pragma unroll
    for (int v = 0; v < @width@; v++) {
      @map@
      prefetch_@side@[i * @width@ + v] = @value@;
    }
  }
}
//@ put
{
  @type@* const tile =
      shared_@side@ + buffer * @tile_k@ * @stride@ + @shared_index@ + @row@ * @strided_step@;
#pragma unroll
  for (int i = 0; i < @loads@; i++) {
    @skip@
#pragma unroll
    for (int v = 0; v < @width@; v++)
      tile[i * @rows@ * @strided_step@ + v * @contiguous_step@] = prefetch_@side@[i * @width@ + v];
  }
}
//@ join
@shared@
const int result = threadIdx.x % @results@, k_group = threadIdx.x / @results@;
const @index@ output = @widened@virtual_block * @results@ + result;
@type@ sum = @zero@;
if (output < @outputs@) {
#pragma unroll 16
  for (int turn = 0; turn < @turns@; turn++) {
    const int k_slice = turn * @groups@ + k_group;
    @slice@
    if (k_slice < @k_slices@) sum = @add@;
  }
}
@exchange@
if (k_group == 0 && output < @outputs@) {
  @type@ total = sum;
#pragma unroll
  for (int other = 1; other < @groups@; other++) total = @addend@;
  @load@
}
