// scatter of 30 entries of 256 elements, 8 rows a block: scatter_add.
// Stores scatter_add (50, 256) float32.
// Grid 7 x 256 threads, 133360 bytes moved at least.
TGC_STAGE(scatter_scatter_add_a0cb624c34,
  const float* in0;
  float* out0;
  const long long* in1;
  const float* in2;
) {
  const int part = 0;
  const int first_row = virtual_block * 8;
  const int first = part * 30;
  const int last = first + 30 < 30 ? first + 30 : 30;
  const int lane = tgc_lane(), warp = tgc_warp();
  int* const list = reinterpret_cast<int*>(smem);  // of the block's entries
  int* const totals = list + 30;
  unsigned char* const rows = reinterpret_cast<unsigned char*>(totals + 8);  // of these entries
  // The row of an entry in this block, or -1.
  auto row_of = [&](int own) {
    int own_target = -1;
    if (own < last) {
      const long long in1 = tgc_load(p.in1, own);
      own_target = (int)in1;
    }
    const int row = own_target - first_row;
    return row >= 0 && row < 8 ? row : -1;
  };
  const int begin = first + warp * 32;
  const int end = begin + 32 < last ? begin + 32 : last;
  int counted = 0;
#pragma unroll 4
  for (int at = begin; at < end; at += 32) {
    counted += __popc(__ballot_sync(0xffffffffu, row_of(at + lane) >= 0));
  }
  if (lane == 0) totals[warp] = counted;
  __syncthreads();
  int total = 0, next = 0;
#pragma unroll
  for (int other = 0; other < 8; other++) {
    if (other == warp) next = total;
    total += totals[other];
  }
  const bool listed = total <= 30;
  if (listed && counted > 0) {
#pragma unroll 4
    for (int at = begin; at < end; at += 32) {
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
  for (int row = warp; row < 8 && first_row + row < 50; row += 8) {
#pragma unroll 1
    for (int start = lane; start - lane < 256; start += 256) {
      float results[8];
#pragma unroll
      for (int k = 0; k < 8; k++) {
        const int column = start + k * 32;
        const bool live = column < 256;
        const int item = (first_row + row) * 256 + column;
        float result = 0;
        if (live) {
          const float in0 = tgc_load(p.in0, item);
          result = in0;
        }
        results[k] = result;
      }
#pragma unroll 1
      for (int at = lane; at - lane < entries; at += 32) {
        int own_entry = -1;
        if (listed) {
          if (at < total && rows[at] == row) own_entry = list[at];
        } else if (row_of(first + at) == row) {
          own_entry = first + at;
        }
        unsigned left = __ballot_sync(0xffffffffu, own_entry >= 0);
#pragma unroll 1
        while (left != 0) {
          int taken[4];
          float brought[4][8];
#pragma unroll
          for (int e = 0; e < 4; e++) {
            taken[e] = tgc_shuffle(own_entry, left != 0 ? __ffs(left) - 1 : 0);
            if (left == 0) taken[e] = -1;
            left &= left - 1;
          }
#pragma unroll
          for (int e = 0; e < 4; e++) {
            const int entry = taken[e];
#pragma unroll
            for (int k = 0; k < 8; k++) {
              const int column = start + k * 32;
              if (entry >= 0 && column < 256) {
                const float in2 = tgc_load(p.in2, entry * 256 + column);
                brought[e][k] = in2;
              }
            }
          }
#pragma unroll
          for (int e = 0; e < 4; e++) {
#pragma unroll
            for (int k = 0; k < 8; k++) {
              if (taken[e] >= 0 && start + k * 32 < 256) {
                const float value = brought[e][k];
                float result = results[k];
                result = (float)(result + value);
                results[k] = result;
              }
            }
          }
        }
      }
#pragma unroll
      for (int k = 0; k < 8; k++) {
        const int column = start + k * 32;
        const int item = (first_row + row) * 256 + column;
        const float result = results[k];
        if (column < 256) {
          tgc_store(p.out0, item, result);
        }
      }
    }
  }
}
