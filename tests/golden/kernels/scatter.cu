// scatter of 30 entries of 16 elements: scatter_add.
// Stores scatter_add (50, 16) float32.
// Grid 4 x 256 threads, 8560 bytes moved at least.
TGC_STAGE(scatter_scatter_add_2039a3665d,
  const float* in0;
  const long long* in1;
  const float* in2;
  float* out0;
) {
  const int item = virtual_block * 256 + threadIdx.x;
  const bool live = item < 800;
  const int target = live ? int(item / 16) : -1;
  int* const targets = reinterpret_cast<int*>(smem);
  float result = 0;
  if (live) {
    const float in0 = tgc_load(p.in0, item);
    result = in0;
  }
  const int own = threadIdx.x;
  int own_target = -1;
  if (own < 30) {
    const long long in1 = tgc_load(p.in1, own);
    own_target = (int)in1;
  }
  targets[threadIdx.x] = own_target;
  __syncthreads();
  const int here = 30 < 256 ? 30 : 256;
  for (int other = 0; other < here; other++) {
    if (targets[other] == target) {
      const int entry = other;
      const float in2 = tgc_load(p.in2, entry * 16 + item % 16);
      result = (float)(result + in2);
    }
  }
  __syncthreads();
  if (live) {
    tgc_store(p.out0, item, result);
  }
}
