// map over 1000 elements, 1 a thread: copy.
// Stores reshape (1000,) float32.
// Grid 4 x 256 threads, 4000 bytes moved at least.
TGC_STAGE(map_copy_b5b343b769,
  const long long* number0;
  const long long* number1;
  float* out0;
) {
  const long long number0 = tgc_load(p.number0, 0);
  const long long number1 = tgc_load(p.number1, 0);
  const int item = virtual_block * 256 + threadIdx.x;
  if (item >= 1000) return;
  const float random_uniform0 = tgc_random_uniform<float>(number0, number1, (long long)item);
  tgc_store(p.out0, item, random_uniform0);
}
