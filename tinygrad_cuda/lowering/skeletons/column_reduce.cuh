// COL: the reduced axes do not include the innermost, so neighbouring threads take neighbouring
// strips of `width` lines and walk down them; `across` x `down` threads, whose results meet in
// shared memory.
// `columns`: the second stage where a row kernel carried them, a part for each of its blocks.
//@ body
const int across = threadIdx.x % @across@;
const int down = threadIdx.x / @across@;
const int tile = virtual_block / @parts@;
const int part = virtual_block % @parts@;
const int wanted = tile * @across@ + across;
const bool live = wanted < @strips@;
const int strip = live ? wanted : @strips@ - 1;  // a spare thread repeats the last, stores nothing
@before@
#pragma unroll
for (int v = 0; v < @width@; v++) {
  @start@
}
const @index@ first = (@index@)part * @chunk@;
const @index@ last = first + @chunk@ < @length@ ? first + @chunk@ : @length@;
#pragma unroll 4
for (@index@ item = first + down; item < last; item += @down@) {
  @load@
#pragma unroll
  for (int v = 0; v < @width@; v++) {
    @map@
  }
  @store@
}
@combine@
if (down == 0 && live) {
  @epilogue@
#pragma unroll
  for (int v = 0; v < @width@; v++) {
    @finish@
  }
  @after@
}
//@ columns
const int across = threadIdx.x % @across@;
const int down = threadIdx.x / @across@;
const int wanted = virtual_block * @across@ + across;
const bool live = wanted < @lines@;
const int line = live ? wanted : @lines@ - 1;
@before@
#pragma unroll 8
for (int part = down; part < @parts@; part += @down@) {
  @load@
}
@combine@
if (down == 0 && live) {
  @epilogue@
  @store@
}
//@ combine
{
  @ctype@* shared = reinterpret_cast<@ctype@*>(smem);
#pragma unroll
  for (int v = 0; v < @width@; v++) shared[v * @threads@ + threadIdx.x] = @name@[v];
  __syncthreads();
  for (int half = @down@ / 2; half > 0; half /= 2) {
    if (down < half) {
#pragma unroll
      for (int v = 0; v < @width@; v++) {
        @ctype@* own = shared + v * @threads@ + threadIdx.x;
        *own = @name@[v] = @operator@(@name@[v], own[half * @across@]);
      }
    }
    __syncthreads();
  }
}
