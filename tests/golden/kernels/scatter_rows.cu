// scatter of 30 entries of 256 elements: scatter_add.
// Stores scatter_add (50, 256) float32.
// Grid 50 x 256 threads, 133360 bytes moved at least.
TGC_STAGE(scatter_scatter_add_30b7514683,
  const float* in0;
  const long long* in1;
  const float* in2;
  float* out0;
) {
  const int first_row = virtual_block;
  const int column = threadIdx.x;
  unsigned* const masks = reinterpret_cast<unsigned*>(smem);
  int* const targets = reinterpret_cast<int*>(smem) + 256 / 32;
  float results[1];
  {
    const bool live = column < 256 && first_row < 50;
    const int item = first_row * 256 + column;
    float result = 0;
    if (live) {
      const float in0 = tgc_load(p.in0, item);
      result = in0;
    }
    results[0] = result;
  }
  {
    const int own = threadIdx.x;
    int own_target = -1;
    if (own < 30) {
      const long long in1 = tgc_load(p.in1, own);
      own_target = (int)in1;
    }
    const bool inside = own_target >= first_row && own_target < first_row + 1;
    const unsigned mask = __ballot_sync(0xffffffffu, inside);
    if (tgc_lane() == 0) masks[tgc_warp()] = mask;
    targets[threadIdx.x] = own_target;
    __syncthreads();
    for (int warp = 0; warp < 8; warp++) {
      for (unsigned left = masks[warp]; left != 0; left &= left - 1) {
        const int entry = warp * 32 + __ffs(left) - 1;
        const int row = targets[entry] - first_row;
        if (column < 256) {
          const int item = (first_row + row) * 256 + column;
          float result = results[0];
          const float in2 = tgc_load(p.in2, entry * 256 + item % 256);
          result = (float)(result + in2);
          results[0] = 0 == row ? result : results[0];
        }
      }
    }
    __syncthreads();
  }
  {
    const bool live = column < 256 && first_row < 50;
    const int item = first_row * 256 + column;
    const float result = results[0];
    if (live) {
      tgc_store(p.out0, item, result);
    }
  }
}
