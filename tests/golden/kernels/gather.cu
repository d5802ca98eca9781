// map over 480 elements, 1 a thread: gather.
// Stores gather (30, 16) float32.
// Grid 2 x 256 threads, 5360 bytes moved at least.
TGC_STAGE(map_gather_f427a8d3be,
  const long long* in0;
  const float* in1;
  float* out0;
) {
  const int item = virtual_block * 256 + threadIdx.x;
  if (item >= 480) return;
  const long long in0 = tgc_load(p.in0, item / 16);
  const int index0 = (int)in0;
  const float in1 = tgc_load(p.in1, index0 * 16 + item % 16);
  tgc_store(p.out0, item, in1);
}
