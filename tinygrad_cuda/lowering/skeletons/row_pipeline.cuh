// row_pipeline: a block has a multiprocessor to itself and walks over rows. While it reduces one row,
// asynchronous copies bring the next to shared memory, and the one after that follows as soon as its
// buffer is free. What all rows share lies in shared memory too, and column sums stay in registers.
// A thread copies what it alone reads, so no barrier stands between copy and use.
//
// Versions, the gradients of layer norm of 8192 x 8192 on an H200, us bfloat16 and float32
// (docs/measurements.md):
//   1. two blocks a multiprocessor, columns in shared memory, a row's loads behind the last   181  300
//   2. both operands of the next row by cp.async behind the first barrier                     173
//   3. a ring of two rows in shared memory, columns in registers, two blocks                  156
//   4. the same, one block a multiprocessor, values in registers                              154  282
//   5. the same, 16-bit values read again from shared memory in each loop                     144.5
// In a later run, marking the copies' lines evict_last in L2 took 147.7 to 144.1 and 282.6 to 271.3 us.
//@ ring_body
const int thread = threadIdx.x % @group@;  // the modulo tells the compiler its range
@declare@
#pragma unroll 1
for (int row = virtual_block, buffer = 0; buffer < 2; row += @blocks@, buffer++) {
  @fetch@
}
#pragma unroll
for (int k = 0; k < @trips@; k++) {
  const @index@ item = k * @group@ + thread;
  @columns@
  if (item < @items@) {
    @start@
  }
}
#pragma unroll 1
for (int row = virtual_block, buffer = 0; row < @rows@; row += @blocks@, buffer ^= 1) {
  char* const scratch = smem + buffer * @scratch_bytes@;  // the row before may still be read
  tgc_copy_wait<1>();  // this row has arrived, the next may be in flight
  @phases@
}
#pragma unroll
for (int k = 0; k < @trips@; k++) {
  if (const @index@ item = k * @group@ + thread; item < @items@) {
    @last@
  }
}
//@ fetch
if (row < @rows@) {
#pragma unroll
  for (int k = 0; k < @trips@; k++) {
    if (const @index@ item = k * @group@ + thread; item < @items@) {
      @copies@
    }
  }
}
tgc_copy_commit();
//@ refill
{
  const int row_ahead = row + @ahead@;
  const int row = row_ahead;
  @fetch@
}
