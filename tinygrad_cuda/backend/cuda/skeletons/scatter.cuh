// SCATTER: each thread makes one element of the output; it looks through the list of positions,
// staged through shared memory, in order. So there are no atomics, and the last of equals is last.
//@ body
const @index@ item = (@index@)virtual_block * @threads@ + threadIdx.x;
const bool live = item < @items@;
const int target = live ? int(item / @inner@) : -1;
int* const targets = reinterpret_cast<int*>(smem);
@before@
for (int first = 0; first < @count@; first += @threads@) {
  const int own = first + threadIdx.x;
  int found = -1;
  if (own < @count@) {
    @find@
  }
  targets[threadIdx.x] = found;
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
