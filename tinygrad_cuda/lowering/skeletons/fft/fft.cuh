// fft: a block transforms `rows` rows of n points in shared memory (Stockham: no reversal of bits).
//
// n is a product of radices. A stage of radix R takes points n / R apart, turns them by the roots of
// unity between the transforms so far, and makes R transforms of `done` points one of R * done:
//
//   stage 0: memory -> registers -> shared;  stage 1 .. last - 1: shared -> shared;
//   last:    shared -> registers -> memory
//
// Between the barriers a thread holds its points in registers, so that one buffer is enough. The
// first stage reads and the last one writes neighbours with neighbouring threads: points of a row,
// or, where rows are columns in memory, the same point of neighbouring rows. An inverse transform is
// a forward one of numbers with real and imaginary part exchanged, both ways.
//
// Grid: a block for `rows` rows, of 256 threads. Moves each point once in and once out: 16 bytes of
// complex64, for which a multiprocessor of an H200 (4.0 TB/s, 132 of them) has 0.95 clocks, or 122
// instructions of its 128 lanes.
//
// Versions, from naive to fast:
//   1. two buffers, radix 2: a barrier and a pass through shared memory for each factor 2
//   2. radix 8, 4, 2 and odd primes in registers, roots computed where they are needed: 97 to 157
//      instructions a point for roots from 256 points on, of 150 to 225 in all
//   3. roots from a table, radix 16: 3 instructions a point for roots, of about 45; and points padded
//      against conflicts of shared memory's banks, of which early stages had 8   (this one)
// Not done: real rows as complex ones of half their length.
//@ body
tgc_complex<@real@>* const line = reinterpret_cast<tgc_complex<@real@>*>(smem);
@stages@
//@ stage
{  // radix @radix@ of transforms of @done@ points
  tgc_complex<@real@> v[@passes@][@radix@];
#pragma unroll
  for (int pass = 0; pass < @passes@; pass++) {
    const int item = pass * @threads@ + threadIdx.x;
    @made@
  }
  @wait@
#pragma unroll
  for (int pass = 0; pass < @passes@; pass++) {
    const int item = pass * @threads@ + threadIdx.x;
    @left@
  }
  @ready@
}
//@ read_memory
const @index@ row = @row@;
#pragma unroll
for (int r = 0; r < @radix@; r++) {
  const int point = j + r * @strides@;
  @load@
  v[pass][r] = @value@;
}
//@ read_shared
const tgc_complex<@real@>* const source = @line@ + @place@;
#pragma unroll
for (int r = 0; r < @radix@; r++) v[pass][r] = source[@offset@];
//@ write_shared
tgc_complex<@real@>* const target = @line@ + @place@;
#pragma unroll
for (int r = 0; r < @radix@; r++) target[@offset@] = v[pass][r];
//@ write_memory
const @index@ row = @row@;
#pragma unroll
for (int r = 0; r < @radix@; r++) {
  const int point = j + r * @strides@;
  @store@
}
