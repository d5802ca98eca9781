// conv_direct, 128 images of 16 channels, 10 rows a block, 5 neighbours of 8 channels a thread, 61440000
//   FLOPs: convolution add maximum.
// Stores maximum (128, 16, 10, 10) float32.
// Grid 128 x 256 threads, 1430976 bytes moved at least.
TGC_STAGE(contract_convolution_add_maximum_553d1f8928,
  const float* in0;
  float* out0;
  const float* in1;
  const float* in2;
) {
  const int image = virtual_block, row_first = 0;
  float* const patch = reinterpret_cast<float*>(smem);
  float* const weights = patch + 1176;
  // Rows of an image, from `row_first` on, to shared memory: first into registers, then there.
  float prefetch_patch[6];
  auto fetch_patch = [&](int first) {
#pragma unroll
    for (int i = 0; i < 3; i++) {
      const int e = first + i * 256;
      const int channel = e / 98, patch_row = e / 7 % 14,
                x = e % 7;
      const int y = row_first + patch_row;
      if (((i + 1) * 256 <= 588 || e < 588)) {
        const tgc_vector<float, 2> in1x2 = tgc_load_vector<2>(p.in1,
            image * 1176 + channel * 196 + y * 14 + x * 2);
#pragma unroll
        for (int v = 0; v < 2; v++) {
          const float in1 = tgc_element(in1x2, v);
          prefetch_patch[i * 2 + v] = in1;
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
          patch[channel * 196 + patch_row * 14 + x * 2 + v] =
              prefetch_patch[i * 2 + v];
    }
  };
  fetch_patch(threadIdx.x);
  {
    const int first = threadIdx.x;
    float weight[10];
#pragma unroll
    for (int i = 0; i < 10; i++) {
      const int e = first + i * 256;
      const int m = e / 150, k = e % 150;
      weight[i] = 0.0f;
      if (((i + 1) * 256 <= 2400 || e < 2400) && m < 16) {
        const float in2 = tgc_load(p.in2, m * 150 + k);
        weight[i] = in2;
      }
    }
#pragma unroll
    for (int i = 0; i < 10; i++) {
      const int e = first + i * 256;
      const int m = e / 150, k = e % 150;
      if ((i + 1) * 256 <= 2400 || e < 2400)
        weights[k * 16 + m / 8 * 8 + m % 8] = weight[i];
    }
  }
  put_patch(threadIdx.x);
  __syncthreads();
  const int position = threadIdx.x % 20, share = threadIdx.x / 40;
  const int channel_group = threadIdx.x / 20 % 2;
  const int row = position / 2, column = position % 2 * 5;
  float sum[8][5] = {};
  if (share < 3) {
    const float* patch_from = patch + share * 2 * 196 + row * 14 +
                        column;
    const float* weights_from =
        weights + share * 2 * 25 * 16 + channel_group * 8;
#pragma unroll 1
    for (int channel = 0; channel < 2; channel++) {
#pragma unroll
      for (int tap_y = 0; tap_y < 5; tap_y++) {
        float inputs[9];
#pragma unroll
        for (int j = 0; j < 9; j++) inputs[j] = patch_from[tap_y * 14 + j];
#pragma unroll
        for (int tap_x = 0; tap_x < 5; tap_x++) {
          float weight[8];
#pragma unroll
          for (int q = 0; q < 8; q += 4) {
            const tgc_vector<float, 4> fragment =
                *reinterpret_cast<const tgc_vector<float, 4>*>(
                    weights_from + (tap_y * 5 + tap_x) * 16 + q);
#pragma unroll
            for (int lane = 0; lane < 4; lane++) weight[q + lane] = fragment.at[lane];
          }
#pragma unroll
          for (int q = 0; q < 8; q++)
#pragma unroll
            for (int j = 0; j < 5; j++)
              sum[q][j] =
                  tgc_multiply_add(weight[q], inputs[j + tap_x], sum[q][j]);
        }
      }
      patch_from += 196;
      weights_from += 400;
    }
  }
  __syncthreads();
  float* const shared_sum = reinterpret_cast<float*>(smem);
  if (share < 3) {
#pragma unroll
    for (int q = 0; q < 8; q++)
#pragma unroll
      for (int j = 0; j < 5; j++)
        if (channel_group * 8 + q < 16 && column + j < 10)
          shared_sum[(share * 16 + channel_group * 8 + q) * 100 +
                     row * 10 + column + j] = sum[q][j];
  }
  __syncthreads();
#pragma unroll 4
  for (int e = threadIdx.x; e < 800; e += 256) {
    const int m = e / 50;
    const int pixel_strip = row_first * 5 + e % 50;
    if (pixel_strip >= 50) continue;
    const int strip = image * 50 + pixel_strip;
    const float in0 = tgc_load(p.in0, m);
    tgc_vector<float, 2> out0x2;
#pragma unroll
    for (int v = 0; v < 2; v++) {
      float total = shared_sum[e * 2 + v];
#pragma unroll
      for (int other = 1; other < 3; other++)
        total += shared_sum[other * 16 * 100 + e * 2 + v];
      const float add0 = total + in0;
      const float maximum0 = tgc_max(add0, 0.0f);
      out0x2.at[v] = tgc_to_storage<float>(maximum0);
    }
    tgc_store_vector(p.out0, strip / 50 * 1600 + m * 100 + strip % 50 * 2, out0x2);
  }
}
