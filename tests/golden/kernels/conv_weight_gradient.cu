// conv_weight_gradient of a kernel 16 x 150, 10 rows of an image at once, 128 blocks, 61440000 FLOPs:
//   convolution_weight_gradient.
// Stores convolution_weight_gradient (16, 6, 5, 5) float32.
// Grid 128 x 256 threads, 2650112 bytes moved at least.
TGC_STAGE(contract_convolution_weight_gradient_slices_1a9ba8670a,
  float* partial0;
  float* out0;
  const float* in0;
  const float* in1;
) {
  const int k_slice = virtual_block;
  float* const patch = reinterpret_cast<float*>(smem);
  float* const cotangent = patch + 1260;
  const int tap_row = threadIdx.x % 30, share = threadIdx.x / 120;
  const int channel_group = threadIdx.x / 30 % 4;
  float sum[4][5] = {};
#pragma unroll 4
  for (int e = threadIdx.x; e < 315; e += 256)
    reinterpret_cast<tgc_vector<float, 4>*>(patch)[e] = tgc_vector<float, 4>{};
  float prefetch_cotangent[8];
#pragma unroll 1
  for (int job = k_slice; job < (k_slice + 1) && job < 128; job++) {
    const int image = job, row_first = 0;
    // Rows of an image, from `row_first` on, to shared memory: first into registers, then there.
    float prefetch_patch[6];
    auto fetch_patch = [&](int first) {
#pragma unroll
      for (int i = 0; i < 3; i++) {
        const int e = first + i * 256;
        const int channel = e / 98, patch_row = e / 7 % 14,
                  x = e % 7;
        const int y = row_first + patch_row;
#pragma unroll
        for (int v = 0; v < 2; v++) prefetch_patch[i * 2 + v] = 0.0f;
        if (((i + 1) * 256 <= 588 || e < 588)) {
          const tgc_vector<float, 2> in0x2 = tgc_load_vector<2>(p.in0,
              image * 1176 + channel * 196 + y * 14 + x * 2);
#pragma unroll
          for (int v = 0; v < 2; v++) {
            const float in0 = tgc_element(in0x2, v);
            prefetch_patch[i * 2 + v] = in0;
          }
        }
      }
    };
    auto put_patch = [&](int first) {
#pragma unroll
      for (int i = 0; i < 3; i++) {
        const int e = first + i * 256;
        const int channel = e / 98, patch_row = e / 7 % 14,
                  x = e % 7;
        const int y = row_first + patch_row;
        if (((i + 1) * 256 <= 588 || e < 588))
#pragma unroll
          for (int v = 0; v < 2; v++)
            patch[channel * 210 + patch_row * 15 + x * 2 + v] =
                prefetch_patch[i * 2 + v];
      }
    };
    auto fetch_cotangent = [&](int first) {
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
            prefetch_cotangent[i * 2 + v] = in1;
          }
        }
      }
    };
    auto put_cotangent = [&](int first) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int e = first + i * 256;
        const int m = e / 50, row = e / 5 % 10;
        if (((i + 1) * 256 <= 800 || e < 800))
#pragma unroll
          for (int v = 0; v < 2; v++)
            cotangent[(m * 10 + row) * 10 + e % 5 * 2 + v] =
                prefetch_cotangent[i * 2 + v];
      }
    };
    fetch_patch(threadIdx.x);
    fetch_cotangent(threadIdx.x);
    __syncthreads();
    put_patch(threadIdx.x);
    put_cotangent(threadIdx.x);
    __syncthreads();
    if (share < 1) {
      const float* const patch_from = patch + tap_row / 5 * 210 +
                                tap_row % 5 * 15;
      const float* const cotangent_from =
          cotangent + channel_group * 400;
#pragma unroll 1
      for (int row = share; row < 10; row += 1) {
        float inputs[14];
#pragma unroll
        for (int j = 0; j < 14; j++)
          inputs[j] = patch_from[row * 15 + j];
#pragma unroll
        for (int q = 0; q < 4; q++) {
          float cotangents[10];
#pragma unroll
          for (int j = 0; j < 10; j += 2) {
            const tgc_vector<float, 2> fragment =
                *reinterpret_cast<const tgc_vector<float, 2>*>(
                    cotangent_from + (q * 10 + row) * 10 + j);
#pragma unroll
            for (int lane = 0; lane < 2; lane++) cotangents[j + lane] = fragment.at[lane];
          }
#pragma unroll
          for (int tap_x = 0; tap_x < 5; tap_x++)
#pragma unroll
            for (int j = 0; j < 10; j++)
              sum[q][tap_x] = tgc_multiply_add(
                  cotangents[j], inputs[j + tap_x], sum[q][tap_x]);
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
      for (int tap_x = 0; tap_x < 5; tap_x++)
        if (channel_group * 4 + q < 16)
          shared_sum[(share * 16 + channel_group * 4 + q) * 150 + tap_row * 5 + tap_x] =
              sum[q][tap_x];
  }
  __syncthreads();
  for (int e = threadIdx.x; e < 2400; e += 256) {
    const int m = e / 150, strip = e % 150;
    float total = shared_sum[e];
    tgc_store(k_slice > 0 ? p.partial0 + (k_slice - 1) * 2400LL : p.out0, m * 150 + strip, total);
  }
}

// Second stage, 2400 sums of 128 slices: convolution_weight_gradient.
// Stores convolution_weight_gradient (16, 6, 5, 5) float32.
// Grid 75 x 256 threads, 1228800 bytes moved at least.
TGC_STAGE(contract_convolution_weight_gradient_join_8092622cb9,
  float* partial0;
  float* out0;
) {
  float* const shared = reinterpret_cast<float*>(smem);
  const int result = threadIdx.x % 32, k_group = threadIdx.x / 32;
  const int output = virtual_block * 32 + result;
  float sum = 0.0f;
  if (output < 2400) {
#pragma unroll 16
    for (int turn = 0; turn < 16; turn++) {
      const int k_slice = turn * 8 + k_group;
      const float* const slice = k_slice > 0 ? p.partial0 + (k_slice - 1) * 2400LL : p.out0;
      if (k_slice < 128) sum = (float)(sum + tgc_load(slice, output));
    }
  }
  shared[threadIdx.x] = sum;
  __syncthreads();
  if (k_group == 0 && output < 2400) {
    float total = sum;
#pragma unroll
    for (int other = 1; other < 8; other++) total = (float)(total + shared[other * 32 + result]);
    tgc_store(p.out0, output, total);
  }
}
