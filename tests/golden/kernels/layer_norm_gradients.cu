// ROW, 4096 rows of 8192, 256 threads each, 4 loops, in registers, the next on its way, with its columns: mul sum mul sub mul sum mul add rsqrt mul mul sum mul div mul mul mul add add neg sum mul add mul mul sum sum.
// Stores add (4096, 8192) bfloat16; reshape (8192,) bfloat16; reshape (8192,) bfloat16.
// Grid 128 x 256 threads, 209731584 bytes moved at least.
struct row_sum_mul_sub_add_rsqrt_parts_0b1c7b9113_params {
  float* partial0;
  float* partial1;
  const tgc_bfloat16* in0;
  const tgc_bfloat16* in1;
  const tgc_bfloat16* in2;
  tgc_bfloat16* out0;
};
__device__ __forceinline__ void row_sum_mul_sub_add_rsqrt_parts_0b1c7b9113_stage(int virtual_block, const row_sum_mul_sub_add_rsqrt_parts_0b1c7b9113_params& p,
                                             char* smem) {
  const int thread = threadIdx.x % 256;  // which tells the compiler that it is less
  float c0[4][8];
  float c1[4][8];
  tgc_vector<tgc_bfloat16, 8>* const row1 = reinterpret_cast<tgc_vector<tgc_bfloat16, 8>*>(smem + 1024);
  tgc_vector<tgc_bfloat16, 8>* const row4 = reinterpret_cast<tgc_vector<tgc_bfloat16, 8>*>(smem + 33792);
  tgc_vector<tgc_bfloat16, 8>* const near16 = reinterpret_cast<tgc_vector<tgc_bfloat16, 8>*>(smem + 66560);
#pragma unroll 1
  for (int line = virtual_block, turn = 0; turn < 2; line += 128, turn++) {
    if (line < 4096) {
#pragma unroll
      for (int k = 0; k < 4; k++) {
        const int item = k * 256 + thread;
        if (item < 1024) {
          tgc_copy_ahead_lasting(row1 + (turn * 1024 + item), p.in0, line * 8192 + item * 8);
          tgc_copy_ahead_lasting(row4 + (turn * 1024 + item), p.in1, line * 8192 + item * 8);
        }
      }
    }
    tgc_copies_close();
  }
#pragma unroll
  for (int k = 0; k < 4; k++) {
    const int item = k * 256 + thread;
    tgc_columns_start(c0[k], 0.0f);
    tgc_columns_start(c1[k], 0.0f);
    if (item < 1024) {
      near16[item] = tgc_load_vector<8>(p.in2, item * 8);
    }
  }
#pragma unroll 1
  for (int line = virtual_block, turn = 0; line < 4096; line += 128, turn ^= 1) {
    char* const slots = smem + turn * 512;  // those of the row before may still be read
    tgc_copies_wait<1>();  // this row has arrived, the next may still be on its way
    float r0 = 0.0f;
#pragma unroll 4
    for (int k = 0; k < 4; k++) {
      const int item = k * 256 + thread;
      if (item < 1024) {
        const tgc_vector<tgc_bfloat16, 8> a2 = row1[turn * 1024 + item];
        const tgc_vector<tgc_bfloat16, 8> a5 = row4[turn * 1024 + item];
        float u7[8];
#pragma unroll
        for (int v = 0; v < 8; v++) {
          const float x3 = tgc_element(a2, v);
          r0 = tgc_sum_op()(r0, x3);
          const float x6 = tgc_element(a5, v);
          u7[v] = x6;
        }
        tgc_columns_take(c1[k], u7, tgc_sum_op());
      }
    }
    tgc_block_send(r0, tgc_sum_op(), slots);
    __syncthreads();
    tgc_block_receive<8>(r0, tgc_sum_op(), slots);
    const float x10 = tgc_cast<tgc_bfloat16>(r0);
    const float x11 = tgc_cast<tgc_bfloat16>(x10 * 0.00012207031f);
    float r1 = 0.0f;
    float r2 = 0.0f;
#pragma unroll 4
    for (int k = 0; k < 4; k++) {
      const int item = k * 256 + thread;
      if (item < 1024) {
        const tgc_vector<tgc_bfloat16, 8> a8 = row1[turn * 1024 + item];
        const tgc_vector<tgc_bfloat16, 8> a14 = row4[turn * 1024 + item];
        const tgc_vector<tgc_bfloat16, 8> a17 = near16[item];
#pragma unroll
        for (int v = 0; v < 8; v++) {
          const float x9 = tgc_element(a8, v);
          const float x12 = tgc_cast<tgc_bfloat16>(x9 - x11);
          const float x13 = tgc_cast<tgc_bfloat16>(x12 * x12);
          r1 = tgc_sum_op()(r1, x13);
          const float x15 = tgc_element(a14, v);
          const float x18 = tgc_element(a17, v);
          const float x19 = tgc_cast<tgc_bfloat16>(x15 * x18);
          const float x20 = tgc_cast<tgc_bfloat16>(x19 * x12);
          r2 = tgc_sum_op()(r2, x20);
        }
      }
    }
    tgc_block_send(r1, tgc_sum_op(), slots + 128);
    tgc_block_send(r2, tgc_sum_op(), slots + 256);
    __syncthreads();
    tgc_block_receive<8>(r1, tgc_sum_op(), slots + 128);
    tgc_block_receive<8>(r2, tgc_sum_op(), slots + 256);
    const float x26 = tgc_cast<tgc_bfloat16>(r1);
    const float x27 = tgc_cast<tgc_bfloat16>(x26 * 0.00012207031f);
    const float x28 = tgc_cast<tgc_bfloat16>(x27 + 1.001358e-05f);
    const float x29 = tgc_cast<tgc_bfloat16>(tgc_rsqrt(x28));
    const float x31 = tgc_cast<tgc_bfloat16>(r2);
    const float x32 = tgc_cast<tgc_bfloat16>(x29 * (-0.5f));
    const float x33 = tgc_cast<tgc_bfloat16>(x32 / x28);
    const float x34 = tgc_cast<tgc_bfloat16>(x31 * x33);
    const float x35 = tgc_cast<tgc_bfloat16>(x34 * 0.00012207031f);
    float r3 = 0.0f;
#pragma unroll 4
    for (int k = 0; k < 4; k++) {
      const int item = k * 256 + thread;
      if (item < 1024) {
        const tgc_vector<tgc_bfloat16, 8> a21 = row4[turn * 1024 + item];
        const tgc_vector<tgc_bfloat16, 8> a23 = near16[item];
        const tgc_vector<tgc_bfloat16, 8> a36 = row1[turn * 1024 + item];
        float u45[8];
#pragma unroll
        for (int v = 0; v < 8; v++) {
          const float x22 = tgc_element(a21, v);
          const float x24 = tgc_element(a23, v);
          const float x25 = tgc_cast<tgc_bfloat16>(x22 * x24);
          const float x30 = tgc_cast<tgc_bfloat16>(x25 * x29);
          const float x37 = tgc_element(a36, v);
          const float x38 = tgc_cast<tgc_bfloat16>(x37 - x11);
          const float x39 = tgc_cast<tgc_bfloat16>(x35 * x38);
          const float x40 = tgc_cast<tgc_bfloat16>(x30 + x39);
          const float x41 = tgc_cast<tgc_bfloat16>(x40 + x39);
          const float x42 = -x41;
          r3 = tgc_sum_op()(r3, x42);
          const float x43 = tgc_cast<tgc_bfloat16>(x38 * x29);
          const float x44 = tgc_cast<tgc_bfloat16>(x22 * x43);
          u45[v] = x44;
        }
        tgc_columns_take(c0[k], u45, tgc_sum_op());
      }
    }
    tgc_block_send(r3, tgc_sum_op(), slots + 384);
    __syncthreads();
    tgc_block_receive<8>(r3, tgc_sum_op(), slots + 384);
    const float x58 = tgc_cast<tgc_bfloat16>(r3);
    const float x59 = tgc_cast<tgc_bfloat16>(x58 * 0.00012207031f);
#pragma unroll 4
    for (int k = 0; k < 4; k++) {
      const int item = k * 256 + thread;
      if (item < 1024) {
        const tgc_vector<tgc_bfloat16, 8> a46 = row4[turn * 1024 + item];
        const tgc_vector<tgc_bfloat16, 8> a48 = near16[item];
        const tgc_vector<tgc_bfloat16, 8> a52 = row1[turn * 1024 + item];
        float y62[8];
#pragma unroll
        for (int v = 0; v < 8; v++) {
          const float x47 = tgc_element(a46, v);
          const float x49 = tgc_element(a48, v);
          const float x50 = tgc_cast<tgc_bfloat16>(x47 * x49);
          const float x51 = tgc_cast<tgc_bfloat16>(x50 * x29);
          const float x53 = tgc_element(a52, v);
          const float x54 = tgc_cast<tgc_bfloat16>(x53 - x11);
          const float x55 = tgc_cast<tgc_bfloat16>(x35 * x54);
          const float x56 = tgc_cast<tgc_bfloat16>(x51 + x55);
          const float x57 = tgc_cast<tgc_bfloat16>(x56 + x55);
          const float x60 = x57 + x59;
          const float x61 = tgc_cast<tgc_bfloat16>(x60);
          y62[v] = x60;
        }
        tgc_store_vector(p.out0, line * 8192 + item * 8, tgc_rounded<tgc_bfloat16>(y62));
      }
    }
    {
      const int later = line + 256;
      const int line = later;
      if (line < 4096) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
          const int item = k * 256 + thread;
          if (item < 1024) {
            tgc_copy_ahead_lasting(row1 + (turn * 1024 + item), p.in0, line * 8192 + item * 8);
            tgc_copy_ahead_lasting(row4 + (turn * 1024 + item), p.in1, line * 8192 + item * 8);
          }
        }
      }
      tgc_copies_close();
    }
  }
#pragma unroll
  for (int k = 0; k < 4; k++) {
    const int item = k * 256 + thread;
    if (item < 1024) {
      tgc_columns_keep(c0[k], p.partial0, (virtual_block * 1024 + item) * 8);
      tgc_columns_keep(c1[k], p.partial1, (virtual_block * 1024 + item) * 8);
    }
  }
}

// Second stage, 8192 columns of 128 parts: sum sum.
// Stores reshape (8192,) bfloat16; reshape (8192,) bfloat16.
// Grid 256 x 256 threads, 8421376 bytes moved at least.
struct col_sum_join_929971b239_params {
  float* partial0;
  float* partial1;
  tgc_bfloat16* out0;
  tgc_bfloat16* out1;
};
__device__ __forceinline__ void col_sum_join_929971b239_stage(int virtual_block, const col_sum_join_929971b239_params& p,
                                             char* smem) {
  const int across = threadIdx.x % 32;
  const int down = threadIdx.x / 32;
  const int wanted = virtual_block * 32 + across;
  const bool live = wanted < 8192;
  const int line = live ? wanted : 8192 - 1;
  float r0[1];
  r0[0] = 0.0f;
  float r1[1];
  r1[0] = 0.0f;
#pragma unroll 8
  for (int part = down; part < 128; part += 8) {
    r0[0] = tgc_sum_op()(r0[0], tgc_load(p.partial0, part * 8192 + line));
    r1[0] = tgc_sum_op()(r1[0], tgc_load(p.partial1, part * 8192 + line));
  }
  {
    float* shared = reinterpret_cast<float*>(smem);
#pragma unroll
    for (int v = 0; v < 1; v++) shared[v * 256 + threadIdx.x] = r0[v];
    __syncthreads();
    for (int half = 8 / 2; half > 0; half /= 2) {
      if (down < half) {
#pragma unroll
        for (int v = 0; v < 1; v++) {
          float* own = shared + v * 256 + threadIdx.x;
          *own = r0[v] = tgc_sum_op()(r0[v], own[half * 32]);
        }
      }
      __syncthreads();
    }
  }
  {
    float* shared = reinterpret_cast<float*>(smem);
#pragma unroll
    for (int v = 0; v < 1; v++) shared[v * 256 + threadIdx.x] = r1[v];
    __syncthreads();
    for (int half = 8 / 2; half > 0; half /= 2) {
      if (down < half) {
#pragma unroll
        for (int v = 0; v < 1; v++) {
          float* own = shared + v * 256 + threadIdx.x;
          *own = r1[v] = tgc_sum_op()(r1[v], own[half * 32]);
        }
      }
      __syncthreads();
    }
  }
  if (down == 0 && live) {
    const float x1 = tgc_cast<tgc_bfloat16>(r0[0]);
    const float x2 = tgc_cast<tgc_bfloat16>(r1[0]);
    tgc_store(p.out0, line, r0[0]);
    tgc_store(p.out1, line, r1[0]);
  }
}
