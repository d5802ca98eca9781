// contract_plain: C[m, n] = epilogue(sum over k of A(m, k) * B(k, n)): the first two rungs of the
// climb in docs/matmul.md, chosen by `tc.kernels.use("matmul", ...)` alone.
//
// naive: a thread computes one output, grid of outputs / 256 blocks of 256 threads. Neighbouring
//   threads have neighbouring columns. Bytes: A n times and B m times, most of them from caches.
// tiled: a block of 256 threads computes 16 x 16 outputs. It brings tiles of 16 x 16 of A and B to
//   shared memory, where 16 threads read each element. Bytes: A n / 16 times and B m / 16 times.
//@ naive
const @index@ element = @widened@virtual_block * @threads@ + threadIdx.x;
if (element < @outputs@) {
  const int strip = int(element % @n@), n = strip;
  const int m = int(element / @n@ % @m@);
  const int batch = int(element / @n@ / @m@);
  @outer@
  @type@ sum = @zero@;
#pragma unroll 1
  for (int k = 0; k < @k@; k++) {
    @load_a@
    @load_b@
    sum = @add@;
  }
  @results@
}
//@ tiled
@type@* const shared_a = reinterpret_cast<@type@*>(smem);
@type@* const shared_b = shared_a + 16 * 17;  // a row more, so that columns begin in other banks
const int row = threadIdx.x / 16, column = threadIdx.x % 16;
const int tile = virtual_block % @tiles@, batch = virtual_block / @tiles@;
const int m = tile / @tiles_n@ * 16 + row, strip = tile % @tiles_n@ * 16 + column, n = strip;
@outer@
@type@ sum = @zero@;
#pragma unroll 1
for (int k_first = 0; k_first < @k@; k_first += 16) {
  {
    const int k = k_first + column;
    @type@ value = @zero@;
    if (m < @m@ && k < @k@) {
      @load_a@
      value = @a@;
    }
    shared_a[row * 17 + column] = value;
  }
  {
    const int k = k_first + row;
    @type@ value = @zero@;
    if (n < @n@ && k < @k@) {
      @load_b@
      value = @b@;
    }
    shared_b[row * 17 + column] = value;
  }
  __syncthreads();
#pragma unroll
  for (int step = 0; step < 16; step++) sum = @add@;
  __syncthreads();
}
if (m < @m@ && n < @n@) {
  @results@
}
//@ results
@row@
@load@
#pragma unroll
for (int v = 0; v < 1; v++) {
  const @type@ total = sum;
  @map@
}
@store@
