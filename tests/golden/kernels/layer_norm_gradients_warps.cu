// row_reduce, 4096 rows of 768, 32 threads each, 4 loops, in registers, with column sums: mul sum div sub mul
//   sum div add rsqrt mul mul sum mul div mul div mul add add neg sum div add sum sum.
// Stores add (4096, 768) bfloat16; reshape (768,) bfloat16; reshape (768,) bfloat16.
// Grid 128 x 256 threads, 19662336 bytes moved at least.
TGC_STAGE(row_reduce_sum_mul_div_sub_add_parts_2015ea9baa,
  float* partial0;
  float* partial1;
  const tgc_bfloat16* in0;
  const tgc_bfloat16* in1;
  const tgc_bfloat16* in2;
  tgc_bfloat16* out0;
) {
  const int thread = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  float column_sum0[3][8];
  float column_sum1[3][8];
#pragma unroll
  for (int k = 0; k < 3; k++) {
    tgc_columns_start(column_sum0[k], 0.0f);
    tgc_columns_start(column_sum1[k], 0.0f);
  }
#pragma unroll 1
  for (int turn = virtual_block * 8 + warp; turn < 4096; turn += 1024) {
    const int row = turn;
    tgc_vector<tgc_bfloat16, 8> in0x8[3];
    tgc_vector<tgc_bfloat16, 8> in1x8[3];
    float sum0 = 0.0f;
#pragma unroll 3
    for (int k = 0; k < 3; k++) {
      if (const int item = k * 32 + thread; item < 96) {
        in0x8[k] = tgc_load_vector<8>(p.in0, row * 768 + item * 8);
        in1x8[k] = tgc_load_vector<8>(p.in1, row * 768 + item * 8);
        float batch0[8];
#pragma unroll
        for (int v = 0; v < 8; v++) {
          const float in0 = tgc_element(in0x8[k], v);
          sum0 = tgc_sum_op()(sum0, in0);
          const float in1 = tgc_element(in1x8[k], v);
          batch0[v] = in1;
        }
        tgc_columns_take(column_sum1[k], batch0, tgc_sum_op());
      }
    }
    sum0 = tgc_warp_reduce(sum0, tgc_sum_op());
    const float rounded0 = tgc_cast<tgc_bfloat16>(sum0);
    const float div0 = tgc_cast<tgc_bfloat16>(rounded0 / 768.0f);
    float sum1 = 0.0f;
    float sum2 = 0.0f;
#pragma unroll 3
    for (int k = 0; k < 3; k++) {
      if (const int item = k * 32 + thread; item < 96) {
        const tgc_vector<tgc_bfloat16, 8> in2x8 = tgc_load_vector<8>(p.in2, item * 8);
#pragma unroll
        for (int v = 0; v < 8; v++) {
          const float in0_1 = tgc_element(in0x8[k], v);
          const float sub0 = tgc_cast<tgc_bfloat16>(in0_1 - div0);
          const float mul0 = tgc_cast<tgc_bfloat16>(sub0 * sub0);
          sum1 = tgc_sum_op()(sum1, mul0);
          const float in1_1 = tgc_element(in1x8[k], v);
          const float in2 = tgc_element(in2x8, v);
          const float mul1 = tgc_cast<tgc_bfloat16>(in1_1 * in2);
          const float mul2 = tgc_cast<tgc_bfloat16>(mul1 * sub0);
          sum2 = tgc_sum_op()(sum2, mul2);
        }
      }
    }
    sum1 = tgc_warp_reduce(sum1, tgc_sum_op());
    sum2 = tgc_warp_reduce(sum2, tgc_sum_op());
    const float rounded1 = tgc_cast<tgc_bfloat16>(sum1);
    const float div1 = tgc_cast<tgc_bfloat16>(rounded1 / 768.0f);
    const float add0 = tgc_cast<tgc_bfloat16>(div1 + 1.001358e-05f);
    const float rsqrt0 = tgc_cast<tgc_bfloat16>(tgc_rsqrt(add0));
    const float rounded2 = tgc_cast<tgc_bfloat16>(sum2);
    const float mul5 = tgc_cast<tgc_bfloat16>(rsqrt0 * (-0.5f));
    const float div2 = tgc_cast<tgc_bfloat16>(mul5 / add0);
    const float mul6 = tgc_cast<tgc_bfloat16>(rounded2 * div2);
    const float div3 = tgc_cast<tgc_bfloat16>(mul6 / 768.0f);
    float sum3 = 0.0f;
#pragma unroll 3
    for (int k = 0; k < 3; k++) {
      if (const int item = k * 32 + thread; item < 96) {
        const tgc_vector<tgc_bfloat16, 8> in2x8_1 = tgc_load_vector<8>(p.in2, item * 8);
        float batch1[8];
#pragma unroll
        for (int v = 0; v < 8; v++) {
          const float in1_2 = tgc_element(in1x8[k], v);
          const float in2_1 = tgc_element(in2x8_1, v);
          const float mul3 = tgc_cast<tgc_bfloat16>(in1_2 * in2_1);
          const float mul4 = tgc_cast<tgc_bfloat16>(mul3 * rsqrt0);
          const float in0_2 = tgc_element(in0x8[k], v);
          const float sub1 = tgc_cast<tgc_bfloat16>(in0_2 - div0);
          const float mul7 = tgc_cast<tgc_bfloat16>(div3 * sub1);
          const float add1 = tgc_cast<tgc_bfloat16>(mul4 + mul7);
          const float add2 = tgc_cast<tgc_bfloat16>(add1 + mul7);
          const float neg0 = -add2;
          sum3 = tgc_sum_op()(sum3, neg0);
          const float mul8 = tgc_cast<tgc_bfloat16>(sub1 * rsqrt0);
          const float mul9 = tgc_cast<tgc_bfloat16>(in1_2 * mul8);
          batch1[v] = mul9;
        }
        tgc_columns_take(column_sum0[k], batch1, tgc_sum_op());
      }
    }
    sum3 = tgc_warp_reduce(sum3, tgc_sum_op());
    const float rounded3 = tgc_cast<tgc_bfloat16>(sum3);
    const float div4 = tgc_cast<tgc_bfloat16>(rounded3 / 768.0f);
#pragma unroll 3
    for (int k = 0; k < 3; k++) {
      if (const int item = k * 32 + thread; item < 96) {
        const tgc_vector<tgc_bfloat16, 8> in2x8_2 = tgc_load_vector<8>(p.in2, item * 8);
        float out0x8[8];
#pragma unroll
        for (int v = 0; v < 8; v++) {
          const float in1_3 = tgc_element(in1x8[k], v);
          const float in2_2 = tgc_element(in2x8_2, v);
          const float mul10 = tgc_cast<tgc_bfloat16>(in1_3 * in2_2);
          const float mul11 = tgc_cast<tgc_bfloat16>(mul10 * rsqrt0);
          const float in0_3 = tgc_element(in0x8[k], v);
          const float sub2 = tgc_cast<tgc_bfloat16>(in0_3 - div0);
          const float mul12 = tgc_cast<tgc_bfloat16>(div3 * sub2);
          const float add3 = tgc_cast<tgc_bfloat16>(mul11 + mul12);
          const float add4 = tgc_cast<tgc_bfloat16>(add3 + mul12);
          const float add5 = add4 + div4;
          const float rounded4 = tgc_cast<tgc_bfloat16>(add5);
          out0x8[v] = add5;
        }
        tgc_store_vector(p.out0, row * 768 + item * 8, tgc_rounded<tgc_bfloat16>(out0x8));
      }
    }
  }
  {
    float* const shared = reinterpret_cast<float*>(smem);
    __syncthreads();  // the sums before these may still be read
#pragma unroll
    for (int k = 0; k < 3; k++) {
      if (const int item = k * 32 + thread; item < 96) {
#pragma unroll
        for (int v = 0; v < 8; v++) {
          shared[(warp * 96 + item) * 8 + v] = column_sum0[k][v];
        }
      }
    }
    __syncthreads();
    for (int column = threadIdx.x; column < 768; column += 256) {
      float total = shared[column];
#pragma unroll
      for (int other = 1; other < 8; other++) {
        total = tgc_sum_op()(total, shared[other * 768 + column]);
      }
      tgc_store(p.partial0, virtual_block * 768 + column, total);
    }
  }
  {
    float* const shared = reinterpret_cast<float*>(smem);
    __syncthreads();  // the sums before these may still be read
#pragma unroll
    for (int k = 0; k < 3; k++) {
      if (const int item = k * 32 + thread; item < 96) {
#pragma unroll
        for (int v = 0; v < 8; v++) {
          shared[(warp * 96 + item) * 8 + v] = column_sum1[k][v];
        }
      }
    }
    __syncthreads();
    for (int column = threadIdx.x; column < 768; column += 256) {
      float total = shared[column];
#pragma unroll
      for (int other = 1; other < 8; other++) {
        total = tgc_sum_op()(total, shared[other * 768 + column]);
      }
      tgc_store(p.partial1, virtual_block * 768 + column, total);
    }
  }
}

// Second stage, 768 columns of 128 parts: sum sum.
// Stores reshape (768,) bfloat16; reshape (768,) bfloat16.
// Grid 96 x 256 threads, 789504 bytes moved at least.
TGC_STAGE(column_reduce_sum_join_a230a50fab,
  float* partial0;
  float* partial1;
  tgc_bfloat16* out0;
  tgc_bfloat16* out1;
) {
  const int across = threadIdx.x % 8;
  const int down = threadIdx.x / 8;
  const int own_column = virtual_block * 8 + across;
  const bool live = own_column < 768;
  const int column = live ? own_column : 767;
  float sum0 = 0.0f;
  float sum1 = 0.0f;
#pragma unroll 8
  for (int part = down; part < 128; part += 32) {
    sum0 = tgc_sum_op()(sum0, tgc_load(p.partial0, part * 768 + column));
    sum1 = tgc_sum_op()(sum1, tgc_load(p.partial1, part * 768 + column));
  }
  {
    float* shared = reinterpret_cast<float*>(smem);
    shared[threadIdx.x] = sum0;
    __syncthreads();
    for (int half = 16; half > 0; half /= 2) {
      if (down < half) {
        float* own = shared + threadIdx.x;
        *own = sum0 = tgc_sum_op()(sum0, own[half * 8]);
      }
      __syncthreads();
    }
  }
  {
    float* shared = reinterpret_cast<float*>(smem);
    shared[threadIdx.x] = sum1;
    __syncthreads();
    for (int half = 16; half > 0; half /= 2) {
      if (down < half) {
        float* own = shared + threadIdx.x;
        *own = sum1 = tgc_sum_op()(sum1, own[half * 8]);
      }
      __syncthreads();
    }
  }
  if (down == 0 && live) {
    const float rounded0 = tgc_cast<tgc_bfloat16>(sum0);
    const float rounded1 = tgc_cast<tgc_bfloat16>(sum1);
    tgc_store(p.out0, column, sum0);
    tgc_store(p.out1, column, sum1);
  }
}
