// CONTRACT: C[m, n] = epilogue(sum over k of A(m, k) * B(k, n)), A and B given by their loads.
// Tiles of A and B pass through registers into shared memory while the tiles before them are
// multiplied; each thread owns `rows` x `cols` results, `strips` of `lanes` neighbours in n.
//@ body
const int tile_n = virtual_block % @tiles_n@;
const int tile_m = virtual_block / @tiles_n@ % @tiles_m@;
const int batch = virtual_block / @tiles@ % @batches@;
const int part = virtual_block / @tiles@ / @batches@;
const int thread_n = threadIdx.x % @threads_n@, thread_m = threadIdx.x / @threads_n@;
@type@* const shared_a = reinterpret_cast<@type@*>(smem);
@type@* const shared_b = shared_a + @tile_k@ * @stride_a@;
@type@ hold_a[@loads_a@ * @width_a@], hold_b[@loads_b@ * @width_b@];
@type@ sum[@rows@][@strips@][@lanes@] = {};
const int k_last = part * @chunk@ + @chunk@ < @k@ ? part * @chunk@ + @chunk@ : @k@;
@outer@

auto fetch = [&](int k_first) {
  @fetch_a@
  @fetch_b@
};
fetch(part * @chunk@);
for (int k_first = part * @chunk@; k_first < k_last; k_first += @tile_k@) {
  @put_a@
  @put_b@
  __syncthreads();
  if (k_first + @tile_k@ < k_last) fetch(k_first + @tile_k@);
#pragma unroll
  for (int kk = 0; kk < @tile_k@; kk++) {
    @type@ a[@rows@], b[@strips@][@lanes@];
#pragma unroll
    for (int i = 0; i < @rows@; i++)
      a[i] = shared_a[kk * @stride_a@ + thread_m * @rows@ + i];
#pragma unroll
    for (int s = 0; s < @strips@; s++)
#pragma unroll
      for (int v = 0; v < @lanes@; v++)
        b[s][v] = shared_b[kk * @stride_b@ + (s * @threads_n@ + thread_n) * @lanes@ + v];
#pragma unroll
    for (int i = 0; i < @rows@; i++)
#pragma unroll
      for (int s = 0; s < @strips@; s++)
#pragma unroll
        for (int v = 0; v < @lanes@; v++) @multiply@
  }
  __syncthreads();
}

#pragma unroll
for (int i = 0; i < @rows@; i++) {
  const int m = tile_m * @tile_m@ + thread_m * @rows@ + i;
  if (m >= @m@) break;
  @row@
#pragma unroll
  for (int s = 0; s < @strips@; s++) {
    const int strip = tile_n * @strips_tile@ + s * @threads_n@ + thread_n;
    if (strip >= @strips_all@) break;
    @load@
#pragma unroll
    for (int v = 0; v < @lanes@; v++) {
      @map@
    }
    @store@
  }
}
//@ fetch
#pragma unroll
for (int i = 0; i < @loads@; i++) {
  const int e = i * @threads@ + threadIdx.x;
  const int @line@ = @line_first@ + e / @line_length@;
  const int @along@ = @along_first@ + e % @line_length@;
  const bool inside = @inside@;
#pragma unroll
  for (int v = 0; v < @width@; v++) hold_@side@[i * @width@ + v] = @zero@;
  if (inside) {
    @load@
#pragma unroll
    for (int v = 0; v < @width@; v++) {
      @map@
    }
  }
}
//@ put
#pragma unroll
for (int i = 0; i < @loads@; i++) {
  const int e = i * @threads@ + threadIdx.x;
#pragma unroll
  for (int v = 0; v < @width@; v++)
    if (e < @count@) shared_@side@[@place@] = hold_@side@[i * @width@ + v];
}
//@ partial
@type@ sum = @zero@;
for (int part = 0; part < @parts@; part++) sum = @add@;
