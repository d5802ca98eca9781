// scatter: every element of the output reads the list of positions in order. So there are no atomics,
// sums have one order, and of equal positions the last one is written last.
//
// Versions, from naive to fast (no times are recorded):
//   1. body: a thread for each element; a block brings the positions to shared memory, so that each
//      is loaded once a block.
//   2. row_body: the threads of a block share a row and find the entries of that row by ballots, so
//      that a warp skips 32 entries at once.
//@ body
const @index@ item = @widened@virtual_block * @threads@ + threadIdx.x;
const bool live = item < @items@;
const int target = live ? int(item / @inner@) : -1;
int* const targets = reinterpret_cast<int*>(smem);
@before@
for (int first = 0; first < @count@; first += @threads@) {
  const int own = first + threadIdx.x;
  int own_target = -1;
  if (own < @count@) {
    @find@
  }
  targets[threadIdx.x] = own_target;
  __syncthreads();
  const int here = @count@ - first < @threads@ ? @count@ - first : @threads@;
  for (int other = 0; other < here; other++) {
    if (targets[other] == target) {
      const int entry = first + other;
      @take@
    }
  }
  __syncthreads();
}
if (live) {
  @store@
}
//@ row_body
const int target = virtual_block / @pieces@;
const int column = virtual_block % @pieces@ * @threads@ + threadIdx.x;
const bool live = column < @inner@;
const @index@ item = @widened@target * @inner@ + column;
unsigned* const masks = reinterpret_cast<unsigned*>(smem);
@before@
for (int first = 0; first < @count@; first += @threads@) {
  const int own = first + threadIdx.x;
  int own_target = -1;
  if (own < @count@) {
    @find@
  }
  const unsigned mask = __ballot_sync(0xffffffffu, own_target == target);
  if (tgc_lane() == 0) masks[tgc_warp()] = mask;
  __syncthreads();
  for (int warp = 0; warp < @threads@ / 32; warp++) {
    for (unsigned left = masks[warp]; left != 0; left &= left - 1) {
      const int entry = first + warp * 32 + __ffs(left) - 1;
      if (live) {
        @take@
      }
    }
  }
  __syncthreads();
}
if (live) {
  @store@
}
