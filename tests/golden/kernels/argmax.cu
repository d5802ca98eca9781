// row_reduce, 33 rows of 77, 32 threads each, 1 loops, in registers: argmax.
// Stores argmax (33, 1) int64.
// Grid 5 x 256 threads, 5346 bytes moved at least.
TGC_STAGE(row_reduce_argmax_e53b85bccc,
  const tgc_half* in0;
  long long* out0;
) {
  const int thread = threadIdx.x % 32;
  const int row = virtual_block * 8 + threadIdx.x / 32;
  if (row >= 33) return;
  tgc_pair<float> argmax0 = {tgc_lowest<float>(), 9223372036854775807LL};
#pragma unroll 3
  for (int k = 0; k < 3; k++) {
    if (const int item = k * 32 + thread; item < 77) {
      const float in0 = tgc_load(p.in0, row * 77 + item);
      argmax0 = tgc_argmax_op()(argmax0, tgc_pair<float>{in0, (long long)item});
    }
  }
  argmax0 = tgc_warp_reduce(argmax0, tgc_argmax_op());
  if (thread == 0) {
    tgc_store(p.out0, row, argmax0.index);
  }
}
