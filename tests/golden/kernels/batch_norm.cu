// grid_reduce, 64 rows of 802816 in 256 tiles, by all blocks together: welford output output mul add rsqrt mul
//   div sub mul add sum mul sum mul add mul mul mul add mul mul mul add add.
// Stores add (256, 64, 56, 56) float32; sum (1, 64, 1, 1) float32; mul (1, 64, 1, 1) float32; add (256, 64,
//   56, 56) float32.
// Grid 132 x 256 threads, 822084608 bytes moved at least.
TGC_STAGE(row_reduce_welford_sum_mul_add_rsqrt_2ec82835ae,
  unsigned long long* words0;
  const float* in0;
  const float* in1;
  float* out0;
  float* out1;
  const float* in2;
  const float* in3;
  float* out2;
  float* out3;
) {
  const int warp = tgc_warp(), lane = tgc_lane();
  const int producers = virtual_block < 64 ? 8 - 2 : 7;
  char* const tiles = smem + warp * 25088;
  unsigned long long* const row_totals = reinterpret_cast<unsigned long long*>(smem + 175616);
  unsigned long long* const barrier = row_totals + 64 * 4 + warp;
  const tgc_vector<float, 4>* const tile0 = reinterpret_cast<const tgc_vector<float, 4>*>(tiles);
  const tgc_vector<float, 4>* const tile1 = reinterpret_cast<const tgc_vector<float, 4>*>(tiles + 12544);
  const unsigned launch = tgc_grid_launch<16384>(p.words0);
  int next = 16384;
  unsigned parity = 0;
  if (warp < producers) {
    next = warp * 132 + virtual_block - (warp == 8 - 2 ? 64 : 0);
    if (lane == 0) tgc_grid_barrier_init(barrier);
    __syncwarp();
    if (lane == 0) {
      const int row = next / 256;
      const int outer = next % 256;
      tgc_grid_barrier_expect(barrier, 25088);
      tgc_grid_copy<3136>(tiles, p.in0, outer * 200704 + row * 3136, barrier);
      tgc_grid_copy<3136>(tiles + 12544, p.in1, outer * 200704 + row * 3136, barrier);
    }
  }
  for (int i = threadIdx.x; i < 256; i += 256) row_totals[i] = 0ull;
  __syncthreads_or(launch == 0);  // every thread has read the number before this launch can end
  if (warp == 7) {  // polls totals for its block
#pragma unroll 1
    for (int row = 0; row < 64;) {
      float a[4];
      bool valid = true;
#pragma unroll
      for (int i = 0; i < 4; i += 2)
        valid &= tgc_grid_poll(p.words0, 2 + row * 4 + i, a[i], a[i + 1], launch);
      if (!__all_sync(TGC_ALL_LANES, valid)) {
        tgc_nap(100);
        continue;
      }
      if (lane == 0) {
#pragma unroll
        for (int i = 0; i < 4; i++) tgc_block_publish(row_totals + row * 4 + i, a[i], launch);
      }
      __syncwarp();
      row++;
    }
    return;
  }
  if (warp == producers) {  // the reducer warp
#pragma unroll 1
    for (int row = virtual_block; row < 64; row += 132) {
      float first = 0.0f, sum[4] = {};
#pragma unroll 1
      for (int start = 0; start < 256;) {
        float a[4][4];
        bool valid = true;
#pragma unroll
        for (int k = 0; k < 4; k++) {
          const int part = start + k * 32 + lane;
          const int index = 258 + (row * 256 + (part < 256 ? part : 0)) * 4;
#pragma unroll
          for (int i = 0; i < 4; i += 2)
            valid &= tgc_grid_poll(p.words0, index + i, a[k][i], a[k][i + 1], launch);
        }
        if (!__all_sync(TGC_ALL_LANES, valid)) {
          tgc_nap(100);
          continue;
        }
        if (start == 0) first = __shfl_sync(TGC_ALL_LANES, tgc_isfinite(a[0][0]) ? a[0][0] : 0.0f, 0);
#pragma unroll
        for (int k = 0; k < 4; k++) {
          if (start + k * 32 + lane < 256) {
            const float delta = a[k][0] - first;
            sum[1] += tgc_fma(delta * delta, 3136.0f, a[k][1]);
            sum[0] += delta;
            sum[2] += a[k][2];
            sum[3] += tgc_fma(a[k][2], delta, a[k][3]);
          }
        }
        start += 128;
      }
#pragma unroll
      for (int i = 0; i < 4; i++) sum[i] = tgc_warp_reduce(sum[i], tgc_sum_op());
      const float offset = sum[0] * 0.00390625f;
      const float squared = sum[0] * offset;
      sum[1] = tgc_fma(-squared, 3136.0f, sum[1]);
      sum[1] = tgc_max_op()(sum[1], 0.0f);
      sum[0] = first + offset;
      sum[3] = tgc_fma(-offset, sum[2], sum[3]);
      if (lane == 0) {
        tgc_grid_publish(p.words0, 2 + row * 4, sum[0], sum[1], launch);
        tgc_grid_publish(p.words0, 2 + row * 4 + 2, sum[2], sum[3], launch);
        const float sub1 = sum[0] - sum[0];
        const float mul1 = sum[2] * sub1;
        const float add0 = sum[3] + mul1;
        const float var = sum[1] * 1.2456154e-06f;
        const float add1 = var + 1e-05f;
        const float rstd = tgc_rsqrt(add1);
        const float mul2 = add0 * rstd;
        tgc_store(p.out0, row, sum[2]);
        tgc_store(p.out1, row, mul2);
      }
    }
    return;
  }
  if (next < 16384) {
    {
      tgc_grid_barrier_wait(barrier, parity);
      const int row = next / 256;
      const int outer = next % 256;
      float shift = tgc_warp_reduce(tgc_element(tile0[lane % 784], 0), tgc_sum_op()) * 0.03125f;
      shift = tgc_isfinite(shift) ? shift : 0.0f;
      float lane_sum0[2] = {0.0f, 0.0f};
      float lane_sum1[2] = {0.0f, 0.0f};
      float lane_sum2[2] = {0.0f, 0.0f};
      float lane_sum3[2] = {0.0f, 0.0f};
#pragma unroll 4
      for (int k = 0; k < 25; k++) {
        if (const int item = k * 32 + lane; item < 784) {
          const tgc_vector<float, 4> in0x4 = tile0[item];
          const tgc_vector<float, 4> in1x4 = tile1[item];
#pragma unroll
          for (int v = 0; v < 4; v++) {
            const float in0 = tgc_element(in0x4, v);
            const float delta = in0 - shift;
            const float in1 = tgc_element(in1x4, v);
            const float sub0 = in0 - shift;
            const float mul0 = in1 * sub0;
            lane_sum0[v & 1] = lane_sum0[v & 1] + delta;
            lane_sum1[v & 1] = tgc_fma(delta, delta, lane_sum1[v & 1]);
            lane_sum2[v & 1] = lane_sum2[v & 1] + in1;
            lane_sum3[v & 1] = lane_sum3[v & 1] + mul0;
          }
        }
      }
      float tile_sum0 = tgc_warp_reduce(lane_sum0[0] + lane_sum0[1], tgc_sum_op());
      float tile_sum1 = tgc_warp_reduce(lane_sum1[0] + lane_sum1[1], tgc_sum_op());
      float tile_sum2 = tgc_warp_reduce(lane_sum2[0] + lane_sum2[1], tgc_sum_op());
      float tile_sum3 = tgc_warp_reduce(lane_sum3[0] + lane_sum3[1], tgc_sum_op());
      const float offset = tile_sum0 * 0.00031887755102040814f;
      tile_sum1 = tgc_max_op()(tgc_fma(-tile_sum0, offset, tile_sum1), 0.0f);
      tile_sum0 = shift + offset;
      tile_sum3 = tgc_fma(-offset, tile_sum2, tile_sum3);
      if (lane == 0) {
        tgc_grid_publish(p.words0, 258 + next * 4, tile_sum0, tile_sum1, launch);
        tgc_grid_publish(p.words0, 258 + next * 4 + 2, tile_sum2, tile_sum3, launch);
      }
    }
  }
  tgc_vector<float, 4> registers0[25];
  tgc_vector<float, 4> registers1[25];
#pragma unroll 1
  while (next < 16384) {
    const int tile = next;
    unsigned bits = 0;
#pragma unroll
    for (int k = 0; k < 25; k++) {
      if (const int item = k * 32 + lane; item < 784) {
        registers0[k] = tile0[item];
        bits |= tgc_grid_load_bits(registers0[k]);
        registers1[k] = tile1[item];
        bits |= tgc_grid_load_bits(registers1[k]);
      }
    }
    tgc_grid_loads_done(bits);
    next = tgc_grid_ticket<16384>(p.words0) + 860;
    if (next < 16384) {
      parity ^= 1;
      if (lane == 0) {
        const int row = next / 256;
        const int outer = next % 256;
        tgc_grid_barrier_expect(barrier, 25088);
        tgc_grid_copy<3136>(tiles, p.in0, outer * 200704 + row * 3136, barrier);
        tgc_grid_copy<3136>(tiles + 12544, p.in1, outer * 200704 + row * 3136, barrier);
      }
      {
        tgc_grid_barrier_wait(barrier, parity);
        const int row = next / 256;
        const int outer = next % 256;
        float shift = tgc_warp_reduce(tgc_element(tile0[lane % 784], 0), tgc_sum_op()) * 0.03125f;
        shift = tgc_isfinite(shift) ? shift : 0.0f;
        float lane_sum0[2] = {0.0f, 0.0f};
        float lane_sum1[2] = {0.0f, 0.0f};
        float lane_sum2[2] = {0.0f, 0.0f};
        float lane_sum3[2] = {0.0f, 0.0f};
#pragma unroll 4
        for (int k = 0; k < 25; k++) {
          if (const int item = k * 32 + lane; item < 784) {
            const tgc_vector<float, 4> in0x4 = tile0[item];
            const tgc_vector<float, 4> in1x4 = tile1[item];
#pragma unroll
            for (int v = 0; v < 4; v++) {
              const float in0 = tgc_element(in0x4, v);
              const float delta = in0 - shift;
              const float in1 = tgc_element(in1x4, v);
              const float sub0 = in0 - shift;
              const float mul0 = in1 * sub0;
              lane_sum0[v & 1] = lane_sum0[v & 1] + delta;
              lane_sum1[v & 1] = tgc_fma(delta, delta, lane_sum1[v & 1]);
              lane_sum2[v & 1] = lane_sum2[v & 1] + in1;
              lane_sum3[v & 1] = lane_sum3[v & 1] + mul0;
            }
          }
        }
        float tile_sum0 = tgc_warp_reduce(lane_sum0[0] + lane_sum0[1], tgc_sum_op());
        float tile_sum1 = tgc_warp_reduce(lane_sum1[0] + lane_sum1[1], tgc_sum_op());
        float tile_sum2 = tgc_warp_reduce(lane_sum2[0] + lane_sum2[1], tgc_sum_op());
        float tile_sum3 = tgc_warp_reduce(lane_sum3[0] + lane_sum3[1], tgc_sum_op());
        const float offset = tile_sum0 * 0.00031887755102040814f;
        tile_sum1 = tgc_max_op()(tgc_fma(-tile_sum0, offset, tile_sum1), 0.0f);
        tile_sum0 = shift + offset;
        tile_sum3 = tgc_fma(-offset, tile_sum2, tile_sum3);
        if (lane == 0) {
          tgc_grid_publish(p.words0, 258 + next * 4, tile_sum0, tile_sum1, launch);
          tgc_grid_publish(p.words0, 258 + next * 4 + 2, tile_sum2, tile_sum3, launch);
        }
      }
    }
    const int row = tile / 256;
    const int outer = tile % 256;
    float totals[4];
    tgc_block_wait(row_totals + row * 4, totals, launch);
    const float var_1 = totals[1] * 1.2456154e-06f;
    const float add2 = var_1 + 1e-05f;
    const float rstd_1 = tgc_rsqrt(add2);
    const float in2 = tgc_load(p.in2, row);
    const float mul3 = rstd_1 * in2;
    const float sub3 = totals[0] - totals[0];
    const float mul5 = sub3 * mul3;
    const float in3 = tgc_load(p.in3, row);
    const float add3 = mul5 + in3;
    const float mul7 = totals[2] * mul3;
    const float mul8 = mul7 * (-1.2456154e-06f);
    const float mul9 = totals[2] * sub3;
    const float add5 = totals[3] + mul9;
    const float mul10 = add5 * in2;
    const float mul11 = rstd_1 * (-0.5f);
    const float div0 = mul11 / add2;
    const float mul12 = mul10 * div0;
    const float mul13 = mul12 * 1.2456154e-06f;
    const float add6 = mul13 + mul13;
#pragma unroll
    for (int k = 0; k < 25; k++) {
      if (const int item = k * 32 + lane; item < 784) {
        const tgc_vector<float, 4> in0x4_1 = registers0[k];
        tgc_vector<float, 4> out2x4;
        const tgc_vector<float, 4> in1x4_1 = registers1[k];
        tgc_vector<float, 4> out3x4;
#pragma unroll
        for (int v = 0; v < 4; v++) {
          const float in0_1 = tgc_element(in0x4_1, v);
          const float sub2 = in0_1 - totals[0];
          const float mul4 = sub2 * mul3;
          const float add4 = mul4 + add3;
          out2x4.at[v] = tgc_to_storage<float>(add4);
          const float in1_1 = tgc_element(in1x4_1, v);
          const float mul6 = in1_1 * mul3;
          const float mul14 = add6 * sub2;
          const float add7 = mul8 + mul14;
          const float add8 = mul6 + add7;
          out3x4.at[v] = tgc_to_storage<float>(add8);
        }
        tgc_store_vector(p.out2, outer * 200704 + row * 3136 + item * 4, out2x4);
        tgc_store_vector(p.out3, outer * 200704 + row * 3136 + item * 4, out3x4);
      }
    }
  }
}
