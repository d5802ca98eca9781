// fft: a block transforms `rows` rows of n points in shared memory (Stockham: no reversal of bits).
//
// n is a product of radices. A stage of radix R takes points n / R apart, turns them by the roots of
// unity between the transforms so far, and makes R transforms of `done` points one of R * done:
//
//   stage 0: memory -> registers -> shared;  stage 1 .. last - 1: shared -> shared;
//   last:    shared -> registers -> memory
//
// Between the barriers a thread holds its points in registers, so that one buffer is enough. The
// first stage reads and the last one writes neighbours with neighbouring threads. An inverse
// transform is a forward one of numbers with real and imaginary part exchanged, both ways.
//
// Versions, from naive to fast:
//   1. two buffers, radix 2: a barrier and a pass through shared memory for each factor 2
//   2. radix 8, 4, 2 and odd primes in registers: a third of the passes   (this one)
// Their values are tested on an H200; neither has been timed. Not done: real rows as complex ones of half their length, and
// padding against conflicts of shared memory's banks, which the writes of early stages have.
//@ body
tgc_complex<@real@>* const line = reinterpret_cast<tgc_complex<@real@>*>(smem);
@stages@
//@ stage
{  // radix @radix@ of transforms of @done@ points
  tgc_complex<@real@> v[@passes@][@radix@];
#pragma unroll
  for (int pass = 0; pass < @passes@; pass++) {
    const int item = pass * @threads@ + threadIdx.x;
    if (item < @items@) {
      const int j = item % @strides@;
      @read@
      @turn@
      tgc_fft_butterfly<@radix@>(v[pass]);
    }
  }
  @wait@
#pragma unroll
  for (int pass = 0; pass < @passes@; pass++) {
    const int item = pass * @threads@ + threadIdx.x;
    if (item < @items@) {
      const int j = item % @strides@;
      @write@
    }
  }
  @ready@
}
//@ read_memory
const @index@ row = @widened@virtual_block * @rows@ + item / @strides@;
#pragma unroll
for (int r = 0; r < @radix@; r++) {
  const int point = j + r * @strides@;
  tgc_complex<@real@> value(0);
  if (row < @batch@) {
    @load@
  }
  v[pass][r] = @value@;
}
//@ read_shared
#pragma unroll
for (int r = 0; r < @radix@; r++) v[pass][r] = line[item / @strides@ * @n@ + j + r * @strides@];
//@ turn
#pragma unroll
for (int r = 1; r < @radix@; r++)
  v[pass][r] = v[pass][r] * tgc_fft_root<@real@>(r * (j % @done@), @together@);
//@ write_shared
tgc_complex<@real@>* const target = line + item / @strides@ * @n@ + j / @done@ * @together@ + j % @done@;
#pragma unroll
for (int r = 0; r < @radix@; r++) target[r * @done@] = v[pass][r];
//@ write_memory
const @index@ row = @widened@virtual_block * @rows@ + item / @strides@;
#pragma unroll
for (int r = 0; r < @radix@; r++) {
  const int point = j + r * @strides@;
  if (@kept@) {
    const tgc_complex<@real@> value = @result@;
    @store@
  }
}
