// SPAN: rows too long for a block, made by all blocks of the GPU at once, which hold a few of them
// on the chip: each element is read once and each result stored once.
// A row is cut into tiles of neighbours. A warp has one in registers, whose row is not yet known,
// and the next one in shared memory: its sums are told to the other blocks before the warp waits for
// the row of the first one. Tiles are given out in order, by tickets. One warp of some blocks
// combines what is told of a row, always in the same order, and stores what is one value a row; one
// warp of each block waits for its totals, so that few look at one place.
// All blocks must be on the GPU at the same time: they wait for each other. One or two blocks of 256
// threads on a multiprocessor. Batch norm of 256 x 64 x 56 x 56 float32 on an H200: 91 % of a copy's
// speed, forward and with its gradients (docs/measurements.md).
//@ body
const int warp = tgc_warp(), lane = tgc_lane();
const int makers = virtual_block < @combiners@ ? @warps@ - 2 : @warps@ - 1;
char* const room = smem + warp * @tile_bytes@;
unsigned long long* const known = reinterpret_cast<unsigned long long*>(smem + @known@);
unsigned long long* const bar = known + @lines@ * @count@ + warp;
@tiles_declared@
const unsigned turn = tgc_span_turn<@tiles@>(@words@);
int next = @tiles@;
unsigned parity = 0;
if (warp < makers) {
  next = warp * @blocks@ + virtual_block - (warp == @warps@ - 2 ? @combiners@ : 0);
  if (lane == 0) tgc_span_open(bar);
  __syncwarp();
  @send@
}
for (int i = threadIdx.x; i < @lines@ * @count@; i += @threads@) known[i] = 0ull;
__syncthreads_or(turn == 0);  // so that all know it before the launch can end
if (warp == @warps@ - 1) {  // waits for totals
#pragma unroll 1
  for (int line = 0; line < @lines@;) {
    float a[@count@];
    bool here = true;
#pragma unroll
    for (int i = 0; i < @count@; i += 2)
      here &= tgc_span_hear(@words@, @told@ + line * @count@ + i, a[i], a[i + 1], turn);
    if (!__all_sync(TGC_ALL_LANES, here)) {
      tgc_nap(100);
      continue;
    }
    if (lane == 0) {
#pragma unroll
      for (int i = 0; i < @count@; i++) tgc_span_pass(known + line * @count@ + i, a[i], turn);
    }
    __syncwarp();
    line++;
  }
  return;
}
if (warp == makers) {  // combines
#pragma unroll 1
  for (int line = virtual_block; line < @lines@; line += @blocks@) {
    float first = 0.0f, sum[@count@] = {};
#pragma unroll 1
    for (int start = 0; start < @parts@;) {
      float a[4][@count@];
      bool here = true;
#pragma unroll
      for (int k = 0; k < 4; k++) {
        const int part = start + k * 32 + lane;
        const int place = @parts_at@ + (line * @parts@ + (part < @parts@ ? part : 0)) * @count@;
#pragma unroll
        for (int i = 0; i < @count@; i += 2)
          here &= tgc_span_hear(@words@, place + i, a[k][i], a[k][i + 1], turn);
      }
      if (!__all_sync(TGC_ALL_LANES, here)) {
        tgc_nap(100);
        continue;
      }
      if (start == 0) first = __shfl_sync(TGC_ALL_LANES, tgc_isfinite(a[0][0]) ? a[0][0] : 0.0f, 0);
#pragma unroll
      for (int k = 0; k < 4; k++) {
        if (start + k * 32 + lane < @parts@) {
          @add@
        }
      }
      start += 128;
    }
#pragma unroll
    for (int i = 0; i < @count@; i++) sum[i] = tgc_warp_reduce(sum[i], tgc_sum_op());
    @finals@
    if (lane == 0) {
      @tell_totals@
      @epilogue@
      @store@
    }
  }
  return;
}
if (next < @tiles@) {
  @tell@
}
@held@
#pragma unroll 1
while (next < @tiles@) {
  const int tile = next;
  unsigned bits = 0;
#pragma unroll
  for (int k = 0; k < @trips@; k++) {
    const int item = k * 32 + lane;
    if (item < @items@) {
      @hold@
    }
  }
  tgc_span_returned(bits);
  next = tgc_span_ticket<@tiles@>(@words@) + @makers_in_all@;
  if (next < @tiles@) {
    parity ^= 1;
    @send@
    @tell@
  }
  const int line = tile / @parts@;
  @places@
  float totals[@count@];
  tgc_span_await(known + line * @count@, totals, turn);
  @line_values@
  @make@
}
//@ send
if (lane == 0) {
  const int line = next / @parts@;
  @places@
  tgc_span_expect(bar, @tile_bytes@);
  @copies@
}
//@ tell
{
  tgc_span_arrived(bar, parity);
  const int line = next / @parts@;
  @places@
  @before@
  @loop@
  @combine@
  if (lane == 0) {
    @tell@
  }
}
//@ loop
@unroll@
for (int k = 0; k < @trips@; k++) {
  const int item = k * 32 + lane;
  if (item < @items@) {
    @load@
#pragma unroll
    for (int v = 0; v < @width@; v++) {
      @map@
    }
    @wide_store@
  }
}
