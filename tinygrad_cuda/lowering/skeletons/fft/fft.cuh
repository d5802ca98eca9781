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
//   2. radix 8, 4, 2 and odd primes in registers, roots computed where they are needed: of 125 to 190
//      instructions a point from 256 points on, two thirds were for roots
//   3. roots from a table, radix 16, 32 to 49 instructions a point; and points padded against
//      conflicts of shared memory's banks, of which early stages had 8   (this one)
// With `HALVED` real rows of an even length are complex ones of half of it: even points are real parts
// and odd ones imaginary parts, and the real row's spectrum follows from theirs, or the reverse.
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
//@ parting
// frequencies k and m - k of a real row, from those of its even and odd points as complex numbers
#pragma unroll 4
for (int item = threadIdx.x; item < @items@; item += @threads@) {
  @position@
  const int other = k == 0 ? 0 : @m@ - k;
  const @index@ row = @row@;
  const tgc_complex<@real@>* const source = @line@;
  tgc_complex<@real@> low = source[@place@], high = source[@opposite@];
  tgc_fft_part(low, high, tgc_fft_listed<@real@, @m@, 2, 1>(1, k));
  @store@
}
