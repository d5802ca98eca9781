// contract 1 x 1000 x 500 x 300, tiles of 16 x 16 in shared memory, 300000000 FLOPs: matmul add maximum.
// Stores maximum (1000, 500) bfloat16.
// Grid 2016 x 256 threads, 1901000 bytes moved at least.
TGC_STAGE(contract_matmul_add_maximum_837944ff5f,
  const tgc_bfloat16* in0;
  const tgc_bfloat16* in1;
  const tgc_bfloat16* in2;
  tgc_bfloat16* out0;
) {
  float* const shared_a = reinterpret_cast<float*>(smem);
  float* const shared_b = shared_a + 16 * 17;  // a row more, so that columns begin in other banks
  const int row = threadIdx.x / 16, column = threadIdx.x % 16;
  const int tile = virtual_block % 2016, batch = virtual_block / 2016;
  const int m = tile / 32 * 16 + row, strip = tile % 32 * 16 + column, n = strip;
  float sum = 0.0f;
#pragma unroll 1
  for (int k_first = 0; k_first < 300; k_first += 16) {
    {
      const int k = k_first + column;
      float value = 0.0f;
      if (m < 1000 && k < 300) {
        const float in0 = tgc_load(p.in0, m * 300 + k);
        value = in0;
      }
      shared_a[row * 17 + column] = value;
    }
    {
      const int k = k_first + row;
      float value = 0.0f;
      if (n < 500 && k < 300) {
        const float in1 = tgc_load(p.in1, n * 300 + k);
        value = in1;
      }
      shared_b[row * 17 + column] = value;
    }
    __syncthreads();
#pragma unroll
    for (int step = 0; step < 16; step++) sum = tgc_fma(shared_a[row * 17 + step],
        shared_b[step * 17 + column], sum);
    __syncthreads();
  }
  if (m < 1000 && n < 500) {
    const float in2 = tgc_load(p.in2, strip);
    const float total = sum;
    const float rounded0 = tgc_cast<tgc_bfloat16>(total);
    const float add0 = tgc_cast<tgc_bfloat16>(rounded0 + in2);
    const float maximum0 = tgc_max(add0, 0.0f);
    tgc_store(p.out0, m * 500 + strip, maximum0);
  }
}
