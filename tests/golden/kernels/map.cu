// map over 65536 elements, 4 a thread: add exp.
// Stores exp (64, 1024) float32.
// Grid 64 x 256 threads, 528384 bytes moved at least.
TGC_STAGE(map_add_exp_e99ebef65a,
  const float* in0;
  const float* in1;
  float* out0;
) {
  const int item = virtual_block * 256 + threadIdx.x;
  if (item >= 16384) return;
  const tgc_vector<float, 4> in0x4 = tgc_load_vector<4>(p.in0, item * 4);
  const tgc_vector<float, 4> in1x4 = tgc_load_vector<4>(p.in1, item % 256 * 4);
  tgc_vector<float, 4> out0x4;
#pragma unroll
  for (int v = 0; v < 4; v++) {
    const float in0 = tgc_element(in0x4, v);
    const float in1 = tgc_element(in1x4, v);
    const float add0 = in0 + in1;
    const float exp0 = tgc_exp(add0);
    out0x4.at[v] = tgc_to_storage<float>(exp0);
  }
  tgc_store_vector(p.out0, item * 4, out0x4);
}
