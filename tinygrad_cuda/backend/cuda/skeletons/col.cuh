// COL: the reduced axes do not include the innermost, so neighbouring threads take neighbouring
// lines and walk down them; `across` x `down` threads, whose results meet in shared memory.
//@ body
const int across = threadIdx.x % @across@;
const int down = threadIdx.x / @across@;
const int tile = virtual_block / @parts@;
const int part = virtual_block % @parts@;
const int wanted = tile * @across@ + across;
const bool live = wanted < @lines@;
const int line = live ? wanted : @lines@ - 1;  // a spare thread repeats the last and stores nothing
@before@
const @index@ first = (@index@)part * @chunk@;
const @index@ last = first + @chunk@ < @length@ ? first + @chunk@ : @length@;
#pragma unroll 4
for (@index@ item = first + down; item < last; item += @down@) {
  @map@
}
@combine@
@epilogue@
if (down == 0 && live) {
  @store@
}
//@ combine
{
  @ctype@* shared = reinterpret_cast<@ctype@*>(smem);
  shared[threadIdx.x] = @name@;
  __syncthreads();
  for (int half = @down@ / 2; half > 0; half /= 2) {
    if (down < half) {
      @name@ = @operator@(@name@, shared[threadIdx.x + half * @across@]);
      shared[threadIdx.x] = @name@;
    }
    __syncthreads();
  }
  @name@ = shared[across];
  __syncthreads();
}
