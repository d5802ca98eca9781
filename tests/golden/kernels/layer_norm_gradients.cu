// row_reduce, 4096 rows of 8192, 256 threads each, 4 loops, in registers, the next in flight, with column
//   sums: mul sum mul sub mul sum mul add rsqrt mul mul sum mul div mul mul mul add add neg sum mul add sum
//   sum.
// Stores add (4096, 8192) bfloat16; reshape (8192,) bfloat16; reshape (8192,) bfloat16.
// Grid 128 x 256 threads, 209731584 bytes moved at least.
TGC_STAGE(row_reduce_sum_mul_sub_add_rsqrt_parts_8238cd3a42,
  float* partial0;
  float* partial1;
  const tgc_bfloat16* in0;
  const tgc_bfloat16* in1;
  const tgc_bfloat16* in2;
  tgc_bfloat16* out0;
) {
  const int thread = threadIdx.x % 256;  // the modulo tells the compiler its range
  float column_sum0[4][8];
  float column_sum1[4][8];
  tgc_vector<tgc_bfloat16, 8>* const rows_in0 = reinterpret_cast<tgc_vector<tgc_bfloat16, 8>*>(smem + 1024);
  tgc_vector<tgc_bfloat16, 8>* const rows_in1 = reinterpret_cast<tgc_vector<tgc_bfloat16, 8>*>(smem + 33792);
  tgc_vector<tgc_bfloat16, 8>* const shared_in2 = reinterpret_cast<tgc_vector<tgc_bfloat16, 8>*>(smem + 66560);
#pragma unroll 1
  for (int row = virtual_block, buffer = 0; buffer < 2; row += 128, buffer++) {
    if (row < 4096) {
#pragma unroll
      for (int k = 0; k < 4; k++) {
        if (const int item = k * 256 + thread; item < 1024) {
          tgc_copy_ahead_lasting(rows_in0 + (buffer * 1024 + item), p.in0, row * 8192 + item * 8);
          tgc_copy_ahead_lasting(rows_in1 + (buffer * 1024 + item), p.in1, row * 8192 + item * 8);
        }
      }
    }
    tgc_copy_commit();
  }
#pragma unroll
  for (int k = 0; k < 4; k++) {
    const int item = k * 256 + thread;
    tgc_columns_start(column_sum0[k], 0.0f);
    tgc_columns_start(column_sum1[k], 0.0f);
    if (item < 1024) {
      shared_in2[item] = tgc_load_vector<8>(p.in2, item * 8);
    }
  }
#pragma unroll 1
  for (int row = virtual_block, buffer = 0; row < 4096; row += 128, buffer ^= 1) {
    char* const scratch = smem + buffer * 512;  // the row before may still be read
    tgc_copy_wait<1>();  // this row has arrived, the next may be in flight
    float sum0 = 0.0f;
#pragma unroll 4
    for (int k = 0; k < 4; k++) {
      if (const int item = k * 256 + thread; item < 1024) {
        const tgc_vector<tgc_bfloat16, 8> in0x8 = rows_in0[buffer * 1024 + item];
        const tgc_vector<tgc_bfloat16, 8> in1x8 = rows_in1[buffer * 1024 + item];
        float batch0[8];
#pragma unroll
        for (int v = 0; v < 8; v++) {
          const float in0 = tgc_element(in0x8, v);
          sum0 = tgc_sum_op()(sum0, in0);
          const float in1 = tgc_element(in1x8, v);
          batch0[v] = in1;
        }
        tgc_columns_take(column_sum1[k], batch0, tgc_sum_op());
      }
    }
    tgc_block_send(sum0, tgc_sum_op(), scratch);
    __syncthreads();
    tgc_block_receive<8>(sum0, tgc_sum_op(), scratch);
    const float rounded0 = tgc_cast<tgc_bfloat16>(sum0);
    const float mean = tgc_cast<tgc_bfloat16>(rounded0 * 0.00012207031f);
    float sum1 = 0.0f;
    float sum2 = 0.0f;
#pragma unroll 4
    for (int k = 0; k < 4; k++) {
      if (const int item = k * 256 + thread; item < 1024) {
        const tgc_vector<tgc_bfloat16, 8> in0x8_1 = rows_in0[buffer * 1024 + item];
        const tgc_vector<tgc_bfloat16, 8> in1x8_1 = rows_in1[buffer * 1024 + item];
        const tgc_vector<tgc_bfloat16, 8> in2x8 = shared_in2[item];
#pragma unroll
        for (int v = 0; v < 8; v++) {
          const float in0_1 = tgc_element(in0x8_1, v);
          const float sub0 = tgc_cast<tgc_bfloat16>(in0_1 - mean);
          const float mul0 = tgc_cast<tgc_bfloat16>(sub0 * sub0);
          sum1 = tgc_sum_op()(sum1, mul0);
          const float in1_1 = tgc_element(in1x8_1, v);
          const float in2 = tgc_element(in2x8, v);
          const float mul1 = tgc_cast<tgc_bfloat16>(in1_1 * in2);
          const float mul2 = tgc_cast<tgc_bfloat16>(mul1 * sub0);
          sum2 = tgc_sum_op()(sum2, mul2);
        }
      }
    }
    tgc_block_send(sum1, tgc_sum_op(), scratch + 128);
    tgc_block_send(sum2, tgc_sum_op(), scratch + 256);
    __syncthreads();
    tgc_block_receive<8>(sum1, tgc_sum_op(), scratch + 128);
    tgc_block_receive<8>(sum2, tgc_sum_op(), scratch + 256);
    const float rounded1 = tgc_cast<tgc_bfloat16>(sum1);
    const float var = tgc_cast<tgc_bfloat16>(rounded1 * 0.00012207031f);
    const float add0 = tgc_cast<tgc_bfloat16>(var + 1.001358e-05f);
    const float rstd = tgc_cast<tgc_bfloat16>(tgc_rsqrt(add0));
    const float rounded2 = tgc_cast<tgc_bfloat16>(sum2);
    const float mul5 = tgc_cast<tgc_bfloat16>(rstd * (-0.5f));
    const float div0 = tgc_cast<tgc_bfloat16>(mul5 / add0);
    const float mul6 = tgc_cast<tgc_bfloat16>(rounded2 * div0);
    const float mul7 = tgc_cast<tgc_bfloat16>(mul6 * 0.00012207031f);
    float sum3 = 0.0f;
#pragma unroll 4
    for (int k = 0; k < 4; k++) {
      if (const int item = k * 256 + thread; item < 1024) {
        const tgc_vector<tgc_bfloat16, 8> in1x8_2 = rows_in1[buffer * 1024 + item];
        const tgc_vector<tgc_bfloat16, 8> in2x8_1 = shared_in2[item];
        const tgc_vector<tgc_bfloat16, 8> in0x8_2 = rows_in0[buffer * 1024 + item];
        float batch1[8];
#pragma unroll
        for (int v = 0; v < 8; v++) {
          const float in1_2 = tgc_element(in1x8_2, v);
          const float in2_1 = tgc_element(in2x8_1, v);
          const float mul3 = tgc_cast<tgc_bfloat16>(in1_2 * in2_1);
          const float mul4 = tgc_cast<tgc_bfloat16>(mul3 * rstd);
          const float in0_2 = tgc_element(in0x8_2, v);
          const float sub1 = tgc_cast<tgc_bfloat16>(in0_2 - mean);
          const float mul8 = tgc_cast<tgc_bfloat16>(mul7 * sub1);
          const float add1 = tgc_cast<tgc_bfloat16>(mul4 + mul8);
          const float add2 = tgc_cast<tgc_bfloat16>(add1 + mul8);
          const float neg0 = -add2;
          sum3 = tgc_sum_op()(sum3, neg0);
          const float mul9 = tgc_cast<tgc_bfloat16>(sub1 * rstd);
          const float mul10 = tgc_cast<tgc_bfloat16>(in1_2 * mul9);
          batch1[v] = mul10;
        }
        tgc_columns_take(column_sum0[k], batch1, tgc_sum_op());
      }
    }
    tgc_block_send(sum3, tgc_sum_op(), scratch + 384);
    __syncthreads();
    tgc_block_receive<8>(sum3, tgc_sum_op(), scratch + 384);
    const float rounded3 = tgc_cast<tgc_bfloat16>(sum3);
    const float mean_1 = tgc_cast<tgc_bfloat16>(rounded3 * 0.00012207031f);
#pragma unroll 4
    for (int k = 0; k < 4; k++) {
      if (const int item = k * 256 + thread; item < 1024) {
        const tgc_vector<tgc_bfloat16, 8> in1x8_3 = rows_in1[buffer * 1024 + item];
        const tgc_vector<tgc_bfloat16, 8> in2x8_2 = shared_in2[item];
        const tgc_vector<tgc_bfloat16, 8> in0x8_3 = rows_in0[buffer * 1024 + item];
        float out0x8[8];
#pragma unroll
        for (int v = 0; v < 8; v++) {
          const float in1_3 = tgc_element(in1x8_3, v);
          const float in2_2 = tgc_element(in2x8_2, v);
          const float mul11 = tgc_cast<tgc_bfloat16>(in1_3 * in2_2);
          const float mul12 = tgc_cast<tgc_bfloat16>(mul11 * rstd);
          const float in0_3 = tgc_element(in0x8_3, v);
          const float sub2 = tgc_cast<tgc_bfloat16>(in0_3 - mean);
          const float mul13 = tgc_cast<tgc_bfloat16>(mul7 * sub2);
          const float add3 = tgc_cast<tgc_bfloat16>(mul12 + mul13);
          const float add4 = tgc_cast<tgc_bfloat16>(add3 + mul13);
          const float add5 = add4 + mean_1;
          const float rounded4 = tgc_cast<tgc_bfloat16>(add5);
          out0x8[v] = add5;
        }
        tgc_store_vector(p.out0, row * 8192 + item * 8, tgc_rounded<tgc_bfloat16>(out0x8));
      }
    }
    {
      const int row_ahead = row + 256;
      const int row = row_ahead;
      if (row < 4096) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
          if (const int item = k * 256 + thread; item < 1024) {
            tgc_copy_ahead_lasting(rows_in0 + (buffer * 1024 + item), p.in0, row * 8192 + item * 8);
            tgc_copy_ahead_lasting(rows_in1 + (buffer * 1024 + item), p.in1, row * 8192 + item * 8);
          }
        }
      }
      tgc_copy_commit();
    }
  }
#pragma unroll
  for (int k = 0; k < 4; k++) {
    if (const int item = k * 256 + thread; item < 1024) {
      tgc_columns_keep(column_sum0[k], p.partial0, (virtual_block * 1024 + item) * 8);
      tgc_columns_keep(column_sum1[k], p.partial1, (virtual_block * 1024 + item) * 8);
    }
  }
}

// Second stage, 8192 columns of 128 parts: sum sum.
// Stores reshape (8192,) bfloat16; reshape (8192,) bfloat16.
// Grid 256 x 256 threads, 8421376 bytes moved at least.
TGC_STAGE(column_reduce_sum_join_ee77a8d4d1,
  float* partial0;
  float* partial1;
  tgc_bfloat16* out0;
  tgc_bfloat16* out1;
) {
  const int across = threadIdx.x % 32;
  const int down = threadIdx.x / 32;
  const int own_column = virtual_block * 32 + across;
  const bool live = own_column < 8192;
  const int column = live ? own_column : 8191;
  float sum0 = 0.0f;
  float sum1 = 0.0f;
#pragma unroll 8
  for (int part = down; part < 128; part += 8) {
    sum0 = tgc_sum_op()(sum0, tgc_load(p.partial0, part * 8192 + column));
    sum1 = tgc_sum_op()(sum1, tgc_load(p.partial1, part * 8192 + column));
  }
  {
    float* shared = reinterpret_cast<float*>(smem);
    shared[threadIdx.x] = sum0;
    __syncthreads();
    for (int half = 4; half > 0; half /= 2) {
      if (down < half) {
        float* own = shared + threadIdx.x;
        *own = sum0 = tgc_sum_op()(sum0, own[half * 32]);
      }
      __syncthreads();
    }
  }
  {
    float* shared = reinterpret_cast<float*>(smem);
    shared[threadIdx.x] = sum1;
    __syncthreads();
    for (int half = 4; half > 0; half /= 2) {
      if (down < half) {
        float* own = shared + threadIdx.x;
        *own = sum1 = tgc_sum_op()(sum1, own[half * 32]);
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
