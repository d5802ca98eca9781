// column_reduce, 64 columns of 12544, each in 49 parts: mul add cast cast sum.
// Stores cast (12544, 64) bfloat16; sum (1, 64) float32.
// Grid 49 x 256 threads, 4867328 bytes moved at least.
TGC_STAGE(column_reduce_sum_mul_add_parts_6d39a06754,
  const tgc_bfloat16* in0;
  const float* in1;
  const tgc_bfloat16* in2;
  tgc_bfloat16* out0;
  float* partial0;
) {
  const int across = threadIdx.x % 8;
  const int down = threadIdx.x / 8;
  const int tile = virtual_block / 49;
  const int part = virtual_block % 49;
  const int own_strip = tile * 8 + across;
  const bool live = own_strip < 8;
  const int strip = live ? own_strip : 7;  // a spare thread repeats the last and stores nothing
  const tgc_vector<float, 4> in1x4 = tgc_load_vector<4>(p.in1, strip * 8);
  const tgc_vector<float, 4> in1x4_1 = tgc_load_vector<4>(p.in1, strip * 8 + 4);
  float sum0[8];
#pragma unroll
  for (int v = 0; v < 8; v++) {
    sum0[v] = 0.0f;
  }
  const int first = part * 256;
  const int last = first + 256 < 12544 ? first + 256 : 12544;
#pragma unroll 1
  for (int group = first + down; group < last; group += 128) {
    tgc_vector<tgc_bfloat16, 8> in0x8[4];
    tgc_vector<tgc_bfloat16, 8> in2x8[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const int item = group + k * 32;
      if (item < last) {
        in0x8[k] = tgc_load_vector<8>(p.in0, item * 64 + strip * 8);
        in2x8[k] = tgc_load_vector<8>(p.in2, item * 64 + strip * 8);
      }
    }
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const int item = group + k * 32;
      if (item < last) {
        float out0x8[8];
#pragma unroll
        for (int v = 0; v < 8; v++) {
          const float in0 = tgc_element(in0x8[k], v);
          const float in1 = v < 4 ? tgc_element(in1x4, v) : tgc_element(in1x4_1, v - 4);
          const float mul0 = in0 * in1;
          const float in2 = tgc_element(in2x8[k], v);
          const float add0 = mul0 + in2;
          const float cast0 = tgc_cast<tgc_bfloat16>(add0);
          sum0[v] = tgc_sum_op()(sum0[v], cast0);
          out0x8[v] = add0;
        }
        if (live) tgc_store_vector(p.out0, item * 64 + strip * 8, tgc_rounded<tgc_bfloat16>(out0x8));
      }
    }
  }
  {
    float* shared = reinterpret_cast<float*>(smem);
#pragma unroll
    for (int v = 0; v < 8; v++) shared[v * 256 + threadIdx.x] = sum0[v];
    __syncthreads();
    for (int half = 16; half > 0; half /= 2) {
      if (down < half) {
#pragma unroll
        for (int v = 0; v < 8; v++) {
          float* own = shared + v * 256 + threadIdx.x;
          *own = sum0[v] = tgc_sum_op()(sum0[v], own[half * 8]);
        }
      }
      __syncthreads();
    }
  }
  if (down == 0 && live) {
#pragma unroll
    for (int v = 0; v < 8; v++) {
      tgc_store(p.partial0, (strip * 8 + v) * 49 + part, sum0[v]);
    }
  }
}

// Second stage, 64 rows of 49 parts: mul add cast cast sum.
// Stores cast (12544, 64) bfloat16; sum (1, 64) float32.
// Grid 8 x 256 threads, 50432 bytes moved at least.
TGC_STAGE(column_reduce_sum_mul_add_join_2bcf009458,
  float* partial0;
  float* out0;
) {
  const int thread = threadIdx.x % 32;
  const int row = virtual_block * 8 + threadIdx.x / 32;
  if (row >= 64) return;
  float sum0 = 0.0f;
#pragma unroll 4
  for (int part = thread; part < 49; part += 32) {
    sum0 = tgc_sum_op()(sum0, tgc_load(p.partial0, row * 49 + part));
  }
  sum0 = tgc_warp_reduce(sum0, tgc_sum_op());
  if (thread == 0) {
    tgc_store(p.out0, row, sum0);
  }
}
