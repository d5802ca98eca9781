// scatter: every element of the output reads the list of positions in order. So there are no atomics,
// sums have one order, and of equal positions the last one is written last.
//
// Versions, from naive to fast; 8192 rows of 768 into 50304, bfloat16 summed in float32, on an H200:
//   1. body: a thread for each element; a block brings the positions to shared memory, so that each
//      is loaded once a block.
//   2. the threads of a block share a row and find the entries of that row by ballots, so that a
//      warp skips 32 entries at once: 3280 us with one row a block, 378 us with 16.
//   3. row_body: a block of up to 64 rows reads the positions twice, to count its entries and to list
//      them in order in shared memory; then each warp takes a row, with several entries in flight: 82.5 us.
// Where there are few rows, blocks have parts of the entries, and `join` adds their sums in order: 16384
// rows of 384 into 65 take 14.0 and 4.7 us, 175 us by version 2.
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
const int part = virtual_block % @parts@;
const int first_row = virtual_block / @parts@ * @rows@;
const int first = part * @chunk@;
const int last = first + @chunk@ < @count@ ? first + @chunk@ : @count@;
const int lane = tgc_lane(), warp = tgc_warp();
int* const list = reinterpret_cast<int*>(smem);  // of the block's entries
int* const totals = list + @listed@;
unsigned char* const rows = reinterpret_cast<unsigned char*>(totals + @warps@);  // of these entries
// The row of an entry in this block, or -1.
auto row_of = [&](int own) {
  int own_target = -1;
  if (own < last) {
    @find@
  }
  const int row = own_target - first_row;
  return row >= 0 && row < @rows@ ? row : -1;
};
const int begin = first + warp * @segment@;
const int end = begin + @segment@ < last ? begin + @segment@ : last;
int counted = 0;
#pragma unroll 4
for (int at = begin; at < end; at += @warp@) {
  counted += __popc(__ballot_sync(0xffffffffu, row_of(at + lane) >= 0));
}
if (lane == 0) totals[warp] = counted;
__syncthreads();
int total = 0, next = 0;
#pragma unroll
for (int other = 0; other < @warps@; other++) {
  if (other == warp) next = total;
  total += totals[other];
}
const bool listed = total <= @listed@;
if (listed && counted > 0) {
#pragma unroll 4
  for (int at = begin; at < end; at += @warp@) {
    const int row = row_of(at + lane);
    const unsigned mask = __ballot_sync(0xffffffffu, row >= 0);
    if (row >= 0) {
      const int own = next + __popc(mask & ((1u << lane) - 1));
      list[own] = at + lane;
      rows[own] = row;
    }
    next += __popc(mask);
  }
}
__syncthreads();
const int entries = listed ? total : last - first;
#pragma unroll 1
for (int row = warp; row < @rows@ && first_row + row < @targets@; row += @warps@) {
#pragma unroll 1
  for (int start = lane; start - lane < @inner@; start += @warp@ * @columns@) {
    @type@ results[@columns@];
#pragma unroll
    for (int k = 0; k < @columns@; k++) {
      const int column = start + k * @warp@;
      const bool live = column < @inner@;
      const @index@ item = @widened@(first_row + row) * @inner@ + column;
      @before@
      results[k] = result;
    }
#pragma unroll 1
    for (int at = lane; at - lane < entries; at += @warp@) {
      int own_entry = -1;
      if (listed) {
        if (at < total && rows[at] == row) own_entry = list[at];
      } else if (row_of(first + at) == row) {
        own_entry = first + at;
      }
      unsigned left = __ballot_sync(0xffffffffu, own_entry >= 0);
#pragma unroll 1
      while (left != 0) {
        int taken[@ahead@];
        @type@ brought[@ahead@][@columns@];
#pragma unroll
        for (int e = 0; e < @ahead@; e++) {
          taken[e] = tgc_shuffle(own_entry, left != 0 ? __ffs(left) - 1 : 0);
          if (left == 0) taken[e] = -1;
          left &= left - 1;
        }
#pragma unroll
        for (int e = 0; e < @ahead@; e++) {
          const int entry = taken[e];
#pragma unroll
          for (int k = 0; k < @columns@; k++) {
            const int column = start + k * @warp@;
            if (entry >= 0 && column < @inner@) {
              @load@
              brought[e][k] = @value@;
            }
          }
        }
#pragma unroll
        for (int e = 0; e < @ahead@; e++) {
#pragma unroll
          for (int k = 0; k < @columns@; k++) {
            if (taken[e] >= 0 && start + k * @warp@ < @inner@) {
              const @type@ value = brought[e][k];
              @type@ result = results[k];
              @take@
              results[k] = result;
            }
          }
        }
      }
    }
#pragma unroll
    for (int k = 0; k < @columns@; k++) {
      const int column = start + k * @warp@;
      const @index@ item = @widened@(first_row + row) * @inner@ + column;
      const @type@ result = results[k];
      if (column < @inner@) {
        @store@
      }
    }
  }
}
//@ join
const @index@ item = @widened@virtual_block * @threads@ + threadIdx.x;
const bool live = item < @items@;
@before@
if (live) {
#pragma unroll 8
  for (int part = 0; part < @parts@; part++) {
    @take@
  }
  @store@
}
