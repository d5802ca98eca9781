// ROW, 4096 rows of 8192, 256 threads each, 4 loops, in registers, the next on its way, with its columns: mul sum mul sub mul sum mul add rsqrt mul mul sum mul div mul mul mul add add neg sum mul add mul mul sum sum.
// Stores add (4096, 8192) bfloat16; reshape (8192,) bfloat16; reshape (8192,) bfloat16.
// Grid 128 x 256 threads, 209731584 bytes moved at least.
struct row_sum_mul_sub_add_rsqrt_parts_5b2a1db1d2_params {
  float* partial0;
  float* partial1;
  const tgc_bfloat16* in0;
  const tgc_bfloat16* in1;
  const tgc_bfloat16* in2;
  tgc_bfloat16* out0;
};
__device__ __forceinline__ void row_sum_mul_sub_add_rsqrt_parts_5b2a1db1d2_stage(int virtual_block, const row_sum_mul_sub_add_rsqrt_parts_5b2a1db1d2_params& p,
                                             char* smem) {
  const int thread = threadIdx.x % 256;  // which tells the compiler that it is less
  float c0[4][8];
  float c1[4][8];
  tgc_vector<tgc_bfloat16, 8>* const row1 = reinterpret_cast<tgc_vector<tgc_bfloat16, 8>*>(smem + 1024);
  tgc_vector<tgc_bfloat16, 8>* const row4 = reinterpret_cast<tgc_vector<tgc_bfloat16, 8>*>(smem + 33792);
  tgc_vector<tgc_bfloat16, 8>* const near15 = reinterpret_cast<tgc_vector<tgc_bfloat16, 8>*>(smem + 66560);
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
      near15[item] = tgc_load_vector<8>(p.in2, item * 8);
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
    const float x10 = r0 * 0.00012207031f;
    float r1 = 0.0f;
    float r2 = 0.0f;
#pragma unroll 4
    for (int k = 0; k < 4; k++) {
      const int item = k * 256 + thread;
      if (item < 1024) {
        const tgc_vector<tgc_bfloat16, 8> a8 = row1[turn * 1024 + item];
        const tgc_vector<tgc_bfloat16, 8> a13 = row4[turn * 1024 + item];
        const tgc_vector<tgc_bfloat16, 8> a16 = near15[item];
#pragma unroll
        for (int v = 0; v < 8; v++) {
          const float x9 = tgc_element(a8, v);
          const float x11 = x9 - x10;
          const float x12 = x11 * x11;
          r1 = tgc_sum_op()(r1, x12);
          const float x14 = tgc_element(a13, v);
          const float x17 = tgc_element(a16, v);
          const float x18 = x14 * x17;
          const float x19 = x18 * x11;
          r2 = tgc_sum_op()(r2, x19);
        }
      }
    }
    tgc_block_send(r1, tgc_sum_op(), slots + 128);
    tgc_block_send(r2, tgc_sum_op(), slots + 256);
    __syncthreads();
    tgc_block_receive<8>(r1, tgc_sum_op(), slots + 128);
    tgc_block_receive<8>(r2, tgc_sum_op(), slots + 256);
    const float x25 = r1 * 0.00012207031f;
    const float x26 = x25 + 1.001358e-05f;
    const float x27 = tgc_rsqrt(x26);
    const float x29 = x27 * (-0.5f);
    const float x30 = x29 / x26;
    const float x31 = r2 * x30;
    const float x32 = x31 * 0.00012207031f;
    float r3 = 0.0f;
#pragma unroll 4
    for (int k = 0; k < 4; k++) {
      const int item = k * 256 + thread;
      if (item < 1024) {
        const tgc_vector<tgc_bfloat16, 8> a20 = row4[turn * 1024 + item];
        const tgc_vector<tgc_bfloat16, 8> a22 = near15[item];
        const tgc_vector<tgc_bfloat16, 8> a33 = row1[turn * 1024 + item];
        float u42[8];
#pragma unroll
        for (int v = 0; v < 8; v++) {
          const float x21 = tgc_element(a20, v);
          const float x23 = tgc_element(a22, v);
          const float x24 = x21 * x23;
          const float x28 = x24 * x27;
          const float x34 = tgc_element(a33, v);
          const float x35 = x34 - x10;
          const float x36 = x32 * x35;
          const float x37 = x28 + x36;
          const float x38 = x37 + x36;
          const float x39 = -x38;
          r3 = tgc_sum_op()(r3, x39);
          const float x40 = x35 * x27;
          const float x41 = x21 * x40;
          u42[v] = x41;
        }
        tgc_columns_take(c0[k], u42, tgc_sum_op());
      }
    }
    tgc_block_send(r3, tgc_sum_op(), slots + 384);
    __syncthreads();
    tgc_block_receive<8>(r3, tgc_sum_op(), slots + 384);
    const float x55 = r3 * 0.00012207031f;
#pragma unroll 4
    for (int k = 0; k < 4; k++) {
      const int item = k * 256 + thread;
      if (item < 1024) {
        const tgc_vector<tgc_bfloat16, 8> a43 = row4[turn * 1024 + item];
        const tgc_vector<tgc_bfloat16, 8> a45 = near15[item];
        const tgc_vector<tgc_bfloat16, 8> a49 = row1[turn * 1024 + item];
        float y57[8];
#pragma unroll
        for (int v = 0; v < 8; v++) {
          const float x44 = tgc_element(a43, v);
          const float x46 = tgc_element(a45, v);
          const float x47 = x44 * x46;
          const float x48 = x47 * x27;
          const float x50 = tgc_element(a49, v);
          const float x51 = x50 - x10;
          const float x52 = x32 * x51;
          const float x53 = x48 + x52;
          const float x54 = x53 + x52;
          const float x56 = x54 + x55;
          y57[v] = x56;
        }
        tgc_store_vector(p.out0, line * 8192 + item * 8, tgc_rounded<tgc_bfloat16>(y57));
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
struct col_sum_join_0076cbf406_params {
  float* partial0;
  float* partial1;
  tgc_bfloat16* out0;
  tgc_bfloat16* out1;
};
__device__ __forceinline__ void col_sum_join_0076cbf406_stage(int virtual_block, const col_sum_join_0076cbf406_params& p,
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
    tgc_store(p.out0, line, r0[0]);
    tgc_store(p.out1, line, r1[0]);
  }
}
