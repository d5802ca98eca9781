// conv_weight_gradient of a kernel 16 x 150, 10 rows of an image at once, 128 parts, 61440000 FLOPs:
//   convolution_weight_gradient.
// Stores convolution_weight_gradient (16, 6, 5, 5) float32.
// Grid 128 x 256 threads, 2650112 bytes moved at least.
TGC_STAGE(contract_convolution_weight_gradient_parts_dde53c56f7,
  float* partial0;
  const float* in0;
  const float* in1;
) {
  const int part = virtual_block;
  float* const patch = reinterpret_cast<float*>(smem);
  float* const slope = patch + 1260;
  const int line_of = threadIdx.x % 30, share = threadIdx.x / 120;
  const int team = threadIdx.x / 30 % 4;
  float sum[4][5] = {};
#pragma unroll 4
  for (int e = threadIdx.x; e < 315; e += 256)
    reinterpret_cast<tgc_vector<float, 4>*>(patch)[e] = tgc_vector<float, 4>{};
  float hold_slope[8];
#pragma unroll 1
  for (int job = part; job < (part + 1) && job < 128; job++) {
    const int image = job, row_first = 0;
    // Rows of an image, from `row_first` on, to shared memory: first into registers, then there.
    float hold_patch[6];
    auto fetch_patch = [&](int first) {
#pragma unroll
      for (int i = 0; i < 3; i++) {
        const int e = first + i * 256;
        const int channel = e / 98, line = e / 7 % 14, x = e % 7;
        const int y = row_first + line;
#pragma unroll
        for (int v = 0; v < 2; v++) hold_patch[i * 2 + v] = 0.0f;
        if (((i + 1) * 256 <= 588 || e < 588)) {
          const tgc_vector<float, 2> in0x2 = tgc_load_vector<2>(p.in0,
              image * 1176 + channel * 196 + y * 14 + x * 2);
#pragma unroll
          for (int v = 0; v < 2; v++) {
            const float in0 = tgc_element(in0x2, v);
            hold_patch[i * 2 + v] = in0;
          }
        }
      }
    };
    auto put_patch = [&](int first) {
#pragma unroll
      for (int i = 0; i < 3; i++) {
        const int e = first + i * 256;
        const int channel = e / 98, line = e / 7 % 14, x = e % 7;
        const int y = row_first + line;
        if (((i + 1) * 256 <= 588 || e < 588))
#pragma unroll
          for (int v = 0; v < 2; v++)
            patch[channel * 210 + line * 15 + x * 2 + v] =
                hold_patch[i * 2 + v];
      }
    };
    auto fetch_slope = [&](int first) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int e = first + i * 256;
        const int m = e / 50, row = row_first + e / 5 % 10;
        const int strip = e % 5;
        if (((i + 1) * 256 <= 800 || e < 800)) {
          const tgc_vector<float, 2> in1x2 = tgc_load_vector<2>(p.in1,
              image * 1600 + m * 100 + row * 10 + strip * 2);
#pragma unroll
          for (int v = 0; v < 2; v++) {
            const float in1 = tgc_element(in1x2, v);
            hold_slope[i * 2 + v] = in1;
          }
        }
      }
    };
    auto put_slope = [&](int first) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int e = first + i * 256;
        const int m = e / 50, row = e / 5 % 10;
        if (((i + 1) * 256 <= 800 || e < 800))
#pragma unroll
          for (int v = 0; v < 2; v++)
            slope[(m * 10 + row) * 10 + e % 5 * 2 + v] =
                hold_slope[i * 2 + v];
      }
    };
    fetch_patch(threadIdx.x);
    fetch_slope(threadIdx.x);
    __syncthreads();
    put_patch(threadIdx.x);
    put_slope(threadIdx.x);
    __syncthreads();
    if (share < 1) {
      const float* const from = patch + line_of / 5 * 210 +
                                line_of % 5 * 15;
      const float* const by = slope + team * 400;
#pragma unroll 1
      for (int row = share; row < 10; row += 1) {
        float near[14];
#pragma unroll
        for (int j = 0; j < 14; j++)
          near[j] = from[row * 15 + j];
#pragma unroll
        for (int q = 0; q < 4; q++) {
          float slopes[10];
#pragma unroll
          for (int j = 0; j < 10; j += 2) {
            const tgc_vector<float, 2> piece =
                *reinterpret_cast<const tgc_vector<float, 2>*>(
                    by + (q * 10 + row) * 10 + j);
#pragma unroll
            for (int lane = 0; lane < 2; lane++) slopes[j + lane] = piece.at[lane];
          }
#pragma unroll
          for (int tap = 0; tap < 5; tap++)
#pragma unroll
            for (int j = 0; j < 10; j++)
              sum[q][tap] = tgc_multiply_add(
                  slopes[j], near[j + tap], sum[q][tap]);
        }
      }
    }
  }
  __syncthreads();
  float* const shared_sum = reinterpret_cast<float*>(smem);
  if (share < 1) {
#pragma unroll
    for (int q = 0; q < 4; q++)
#pragma unroll
      for (int tap = 0; tap < 5; tap++)
        if (team * 4 + q < 16)
          shared_sum[(share * 16 + team * 4 + q) * 150 + line_of * 5 + tap] =
              sum[q][tap];
  }
  __syncthreads();
  for (int e = threadIdx.x; e < 2400; e += 256) {
    const int m = e / 150, strip = e % 150;
    float total = shared_sum[e];
    tgc_store(p.partial0, part * 2400LL + m * 150 + strip, total);
  }
}

// Second stage, 2400 sums of 128 parts: convolution_weight_gradient.
// Stores convolution_weight_gradient (16, 6, 5, 5) float32.
// Grid 75 x 256 threads, 1238400 bytes moved at least.
TGC_STAGE(contract_convolution_weight_gradient_join_5675e2ad44,
  float* partial0;
  float* out0;
) {
  float* const shared = reinterpret_cast<float*>(smem);
  const int place = threadIdx.x % 32, group = threadIdx.x / 32;
  const int item = virtual_block * 32 + place;
  float sum = 0.0f;
  if (item < 2400) {
#pragma unroll 16
    for (int turn = 0; turn < 16; turn++) {
      const int part = turn * 8 + group;
      if (part < 128) sum = (float)(sum + tgc_load(p.partial0, part * 2400LL + item));
    }
  }
  shared[threadIdx.x] = sum;
  __syncthreads();
  if (group == 0 && item < 2400) {
    float total = sum;
#pragma unroll
    for (int other = 1; other < 8; other++) total = (float)(total + shared[other * 32 + place]);
    tgc_store(p.out0, item, total);
  }
}
