// row_reduce, 4096 rows of 2048, 256 threads each, 4 loops, in registers, with column sums: mul sum mul sub
//   mul sum mul add rsqrt mul mul sum mul div mul mul mul add add neg sum mul add sum sum.
// Stores add (4096, 2048) float32; reshape (2048,) float32; reshape (2048,) float32.
// Grid 256 x 256 threads, 104865792 bytes moved at least.
TGC_STAGE(row_reduce_sum_mul_sub_add_rsqrt_parts_2706218218,
  float* partial0;
  float* partial1;
  const float* in0;
  const float* in1;
  const float* in2;
  float* out0;
) {
  const int thread = threadIdx.x % 256;  // the modulo tells the compiler its range
  float* column_sum0 = reinterpret_cast<float*>(smem + 1024);
  float* column_sum1 = reinterpret_cast<float*>(smem + 9216);
#pragma unroll 1
  for (int item = thread; item < 512; item += 256) {
    tgc_columns_start<4>(column_sum0, item, 512, 0.0f);
    tgc_columns_start<4>(column_sum1, item, 512, 0.0f);
  }
#pragma unroll 1
  for (int row = virtual_block, buffer = 0; row < 4096; row += 256, buffer ^= 1) {
    char* const scratch = smem + buffer * 512;  // the row before may still be read
    tgc_vector<float, 4> in0x4[2];
    tgc_vector<float, 4> in1x4[2];
    float sum0 = 0.0f;
#pragma unroll 2
    for (int k = 0; k < 2; k++) {
      if (const int item = k * 256 + thread; item < 512) {
        in0x4[k] = tgc_load_vector_lasting<4>(p.in0, row * 2048 + item * 4);
        in1x4[k] = tgc_load_vector_lasting<4>(p.in1, row * 2048 + item * 4);
        float batch0[4];
#pragma unroll
        for (int v = 0; v < 4; v++) {
          const float in0 = tgc_element(in0x4[k], v);
          sum0 = tgc_sum_op()(sum0, in0);
          const float in1 = tgc_element(in1x4[k], v);
          batch0[v] = in1;
        }
        tgc_columns_take(column_sum1, item, 512, batch0, tgc_sum_op());
      }
    }
    tgc_block_send(sum0, tgc_sum_op(), scratch);
    __syncthreads();
    tgc_block_receive<8>(sum0, tgc_sum_op(), scratch);
    const float mean = sum0 * 0.00048828125f;
    float sum1 = 0.0f;
    float sum2 = 0.0f;
#pragma unroll 2
    for (int k = 0; k < 2; k++) {
      if (const int item = k * 256 + thread; item < 512) {
        const tgc_vector<float, 4> in2x4 = tgc_load_vector<4>(p.in2, item * 4);
#pragma unroll
        for (int v = 0; v < 4; v++) {
          const float in0_1 = tgc_element(in0x4[k], v);
          const float sub0 = in0_1 - mean;
          const float mul0 = sub0 * sub0;
          sum1 = tgc_sum_op()(sum1, mul0);
          const float in1_1 = tgc_element(in1x4[k], v);
          const float in2 = tgc_element(in2x4, v);
          const float mul1 = in1_1 * in2;
          const float mul2 = mul1 * sub0;
          sum2 = tgc_sum_op()(sum2, mul2);
        }
      }
    }
    tgc_block_send(sum1, tgc_sum_op(), scratch + 128);
    tgc_block_send(sum2, tgc_sum_op(), scratch + 256);
    __syncthreads();
    tgc_block_receive<8>(sum1, tgc_sum_op(), scratch + 128);
    tgc_block_receive<8>(sum2, tgc_sum_op(), scratch + 256);
    const float var = sum1 * 0.00048828125f;
    const float add0 = var + 1e-05f;
    const float rstd = tgc_rsqrt(add0);
    const float mul5 = rstd * (-0.5f);
    const float div0 = mul5 / add0;
    const float mul6 = sum2 * div0;
    const float mul7 = mul6 * 0.00048828125f;
    float sum3 = 0.0f;
#pragma unroll 2
    for (int k = 0; k < 2; k++) {
      if (const int item = k * 256 + thread; item < 512) {
        const tgc_vector<float, 4> in2x4_1 = tgc_load_vector<4>(p.in2, item * 4);
        float batch1[4];
#pragma unroll
        for (int v = 0; v < 4; v++) {
          const float in1_2 = tgc_element(in1x4[k], v);
          const float in2_1 = tgc_element(in2x4_1, v);
          const float mul3 = in1_2 * in2_1;
          const float mul4 = mul3 * rstd;
          const float in0_2 = tgc_element(in0x4[k], v);
          const float sub1 = in0_2 - mean;
          const float mul8 = mul7 * sub1;
          const float add1 = mul4 + mul8;
          const float add2 = add1 + mul8;
          const float neg0 = -add2;
          sum3 = tgc_sum_op()(sum3, neg0);
          const float mul9 = sub1 * rstd;
          const float mul10 = in1_2 * mul9;
          batch1[v] = mul10;
        }
        tgc_columns_take(column_sum0, item, 512, batch1, tgc_sum_op());
      }
    }
    tgc_block_send(sum3, tgc_sum_op(), scratch + 384);
    __syncthreads();
    tgc_block_receive<8>(sum3, tgc_sum_op(), scratch + 384);
    const float mean_1 = sum3 * 0.00048828125f;
#pragma unroll 2
    for (int k = 0; k < 2; k++) {
      if (const int item = k * 256 + thread; item < 512) {
        const tgc_vector<float, 4> in2x4_2 = tgc_load_vector<4>(p.in2, item * 4);
        tgc_vector<float, 4> out0x4;
#pragma unroll
        for (int v = 0; v < 4; v++) {
          const float in1_3 = tgc_element(in1x4[k], v);
          const float in2_2 = tgc_element(in2x4_2, v);
          const float mul11 = in1_3 * in2_2;
          const float mul12 = mul11 * rstd;
          const float in0_3 = tgc_element(in0x4[k], v);
          const float sub2 = in0_3 - mean;
          const float mul13 = mul7 * sub2;
          const float add3 = mul12 + mul13;
          const float add4 = add3 + mul13;
          const float add5 = add4 + mean_1;
          out0x4.at[v] = tgc_to_storage<float>(add5);
        }
        tgc_store_vector(p.out0, row * 2048 + item * 4, out0x4);
      }
    }
  }
#pragma unroll 1
  for (int item = thread; item < 512; item += 256) {
    tgc_columns_keep<4>(column_sum0, item, 512, p.partial0, (virtual_block * 512 + item) * 4);
    tgc_columns_keep<4>(column_sum1, item, 512, p.partial1, (virtual_block * 512 + item) * 4);
  }
}

// Second stage, 2048 columns of 256 parts: sum sum.
// Stores reshape (2048,) float32; reshape (2048,) float32.
// Grid 256 x 256 threads, 4210688 bytes moved at least.
TGC_STAGE(column_reduce_sum_join_e1fc1d0c42,
  float* partial0;
  float* partial1;
  float* out0;
  float* out1;
) {
  const int across = threadIdx.x % 8;
  const int down = threadIdx.x / 8;
  const int own_column = virtual_block * 8 + across;
  const bool live = own_column < 2048;
  const int column = live ? own_column : 2047;
  float sum0 = 0.0f;
  float sum1 = 0.0f;
#pragma unroll 8
  for (int part = down; part < 256; part += 32) {
    sum0 = tgc_sum_op()(sum0, tgc_load(p.partial0, part * 2048 + column));
    sum1 = tgc_sum_op()(sum1, tgc_load(p.partial1, part * 2048 + column));
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
    tgc_store(p.out0, column, sum0);
    tgc_store(p.out1, column, sum1);
  }
}
