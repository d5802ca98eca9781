// RING: a block that walks over rows has a multiprocessor to itself. While it makes one row the next
// is on its way to shared memory, and the one after it follows as soon as there is room; so memory
// never waits for the block's barriers. What all rows share lies there too, and the columns that it
// carries are in registers. A thread copies what it alone reads: no barrier stands between.
//@ ring_body
const int thread = threadIdx.x % @group@;  // which tells the compiler that it is less
@declare@
#pragma unroll 1
for (int line = virtual_block, turn = 0; turn < 2; line += @blocks@, turn++) {
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
for (int line = virtual_block, turn = 0; line < @lines@; line += @blocks@, turn ^= 1) {
  char* const slots = smem + turn * @scratch@;  // those of the row before may still be read
  tgc_copies_wait<1>();  // this row has arrived, the next may still be on its way
  @phases@
}
#pragma unroll
for (int k = 0; k < @trips@; k++) {
  const @index@ item = k * @group@ + thread;
  if (item < @items@) {
    @last@
  }
}
//@ fetch
if (line < @lines@) {
#pragma unroll
  for (int k = 0; k < @trips@; k++) {
    const @index@ item = k * @group@ + thread;
    if (item < @items@) {
      @copies@
    }
  }
}
tgc_copies_close();
//@ refill
{
  const int later = line + @ahead@;
  const int line = later;
  @fetch@
}
