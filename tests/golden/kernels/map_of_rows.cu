// map over 1280704 elements, 4 of 2 rows a thread: mul add.
// Stores add (20011, 64) float32.
// Grid 626 x 256 threads, 10246144 bytes moved at least.
TGC_STAGE(map_mul_add_821daa57db,
  const float* in0;
  const float* in1;
  const float* in2;
  float* out0;
) {
  const int thread = threadIdx.x;
  const tgc_vector<float, 4> in1x4 = tgc_load_vector<4>(p.in1, thread % 16 * 4);
  const tgc_vector<float, 4> in2x4 = tgc_load_vector<4>(p.in2, thread % 16 * 4);
  tgc_vector<float, 4> in0x4[2];
#pragma unroll
  for (int k = 0; k < 2; k++) {
    if ((virtual_block * 2 + k) * 256 + thread < 320176) {
      in0x4[k] = tgc_load_vector<4>(p.in0, virtual_block * 2048 + k * 1024 + thread * 4);
    }
  }
#pragma unroll
  for (int k = 0; k < 2; k++) {
    if ((virtual_block * 2 + k) * 256 + thread < 320176) {
      tgc_vector<float, 4> out0x4;
#pragma unroll
      for (int v = 0; v < 4; v++) {
        const float in0 = tgc_element(in0x4[k], v);
        const float in1 = tgc_element(in1x4, v);
        const float mul0 = in0 * in1;
        const float in2 = tgc_element(in2x4, v);
        const float add0 = mul0 + in2;
        out0x4.at[v] = tgc_to_storage<float>(add0);
      }
      tgc_store_vector(p.out0, virtual_block * 2048 + k * 1024 + thread * 4, out0x4);
    }
  }
}
