// conv_depthwise, 64 images of 64 channels, channels last, 8 x 8 results of 1 channel a thread: convolution.
// Stores convolution (64, 32, 32, 64) bfloat16.
// Grid 256 x 256 threads, 10486912 bytes moved at least.
TGC_STAGE(contract_convolution_e7440db701,
  tgc_bfloat16* out0;
  const tgc_bfloat16* in0;
  const tgc_bfloat16* in1;
) {
  // A block has neighbouring channels, whose weights it puts into shared memory, tap by tap.
  const int first_output = virtual_block % 2 * 32;
  const int output = first_output + threadIdx.x % 32, strip_in_block = threadIdx.x / 32;
  const int position = (virtual_block / 2) * 8 + strip_in_block;
  const int column_index = int(position % 4), row_index = int(position / 4 % 4);
  const int image = int(position / 16);
  float* const shared = reinterpret_cast<float*>(smem);
  for (int e = threadIdx.x; e < 288; e += 256) {
    const int o = first_output + e % 32;
    const int tap = e / 32;
    if (o < 64) {
      const float in0 = tgc_load(p.in0, o * 9 - tap + 8);
      shared[e] = in0;
    }
  }
  __syncthreads();
  float sum[8][8] = {};
  const int channel = output;
  float weight[9];
#pragma unroll
  for (int tap = 0; tap < 9; tap++) {
    const tgc_vector<float, 1>* const from = reinterpret_cast<const tgc_vector<float, 1>*>(
        shared + tap * 32 + (output - first_output));
    weight[tap] = from[0].at[0];
  }
#pragma unroll
  for (int i = 0; i < 5; i++) {
    const int y = row_index * 4 + i;
    float inputs[5] = {};
#pragma unroll
    for (int k = 0; k < 5; k++) {
      const int x = column_index * 4 + k;
      {
        const bool inside = y < 16 && x < 16;
        const float in1 = tgc_load_if(inside, p.in1, image * 16384 + y * 1024 + x * 64 + channel);
        inputs[k] = in1;
      }
    }
#pragma unroll
    for (int tap_y = 0; tap_y < 3; tap_y++) {
      // Of the rows of results, the one that reads row i with this tap.
      const int down = i * 2 - tap_y + 1, r = down;
      if (down < 0 || r >= 8) continue;
#pragma unroll
      for (int tap_x = 0; tap_x < 3; tap_x++) {
#pragma unroll
        for (int j = 0; j < 8; j++) {
          const int across = j + tap_x - 1;
          if (across % 2 != 0) continue;
          sum[r][j] = tgc_multiply_add(weight[tap_y * 3 + tap_x], inputs[across / 2], sum[r][j]);
        }
      }
    }
  }
#pragma unroll
  for (int r = 0; r < 8; r++) {
    const int row = row_index * 8 + r;
#pragma unroll
    for (int strip = 0; strip < 8; strip++) {
      const int column = column_index * 8 + strip;
      const float total = sum[r][strip];
      const float rounded0 = tgc_cast<tgc_bfloat16>(total);
      tgc_store(p.out0, image * 65536 + row * 2048 + column * 64 + output, total);
    }
  }
}

// conv_depthwise weight gradient of 64 x 1 windows, 4 x 2 results of 2 channels at once, 128 slices:
//   convolution_weight_gradient.
// Stores convolution_weight_gradient (64, 1, 3, 3) bfloat16.
// Grid 256 x 256 threads, 10780672 bytes moved at least.
TGC_STAGE(contract_convolution_weight_gradient_slices_30e5bc821e,
  float* partial0;
  const tgc_bfloat16* in0;
  const tgc_bfloat16* in1;
) {
  const int k_slice = virtual_block % 128, first_pair = virtual_block / 128 * 16;
  const int in_block = threadIdx.x % 16, part = threadIdx.x / 16, pair = first_pair + in_block;
  float sum[18] = {};
  if (pair < 32) {
    const int output = pair, channel = output;
#pragma unroll 1
    for (int job = k_slice * 16 + part; job < 2048; job += 2048) {
      const int column_index = job % 8, row_index = job / 8 % 4;
      const int image = job / 32;
      float cotangent[4][4] = {};
#pragma unroll
      for (int r = 0; r < 4; r++) {
        const int row = row_index * 4 + r;
#pragma unroll
        for (int strip = 0; strip < 2; strip++) {
          const int column = column_index * 2 + strip;
          {
            const tgc_vector<tgc_bfloat16, 2> in1x2 = tgc_load_vector<2>(p.in1,
                image * 16384 + row * 1024 + column * 64 + output * 2);
#pragma unroll
            for (int v = 0; v < 2; v++) {
              const float in1 = tgc_element(in1x2, v);
              cotangent[r][strip * 2 + v] = in1;
            }
          }
        }
      }
#pragma unroll
      for (int i = 0; i < 9; i++) {
        const int y = row_index * 8 + i - 1;
        float inputs[10] = {};
#pragma unroll
        for (int k = 0; k < 5; k++) {
          const int x = column_index * 4 + k - 1;
          {
            const bool inside = y >= 0 && x >= 0;
            const tgc_vector<tgc_bfloat16, 2> in0x2 = tgc_load_vector_if<2>(inside, p.in0,
                image * 65536 + y * 2048 + x * 64 + channel * 2);
#pragma unroll
            for (int v = 0; v < 2; v++) {
              const float in0 = tgc_element(in0x2, v);
              inputs[k * 2 + v] = in0;
            }
          }
        }
#pragma unroll
        for (int tap_y = 0; tap_y < 3; tap_y++) {
          // Of the rows of results, the one that reads row i with this tap.
          const int down = i - tap_y, r = down / 2;
          if (down < 0 || r >= 4) continue;
          if (down % 2 != 0) continue;
#pragma unroll
          for (int tap_x = 0; tap_x < 3; tap_x++) {
#pragma unroll
            for (int j = 0; j < 2; j++) {
              const int across = j * 2 + tap_x;
#pragma unroll
              for (int v = 0; v < 2; v++)
                sum[(tap_y * 3 + tap_x) * 2 + v] = tgc_multiply_add(cotangent[r][j * 2 + v],
                    inputs[across * 2 + v], sum[(tap_y * 3 + tap_x) * 2 + v]);
            }
          }
        }
      }
    }
  }
  float* const shared = reinterpret_cast<float*>(smem);
#pragma unroll 1
  for (int half = 8; half > 0; half /= 2) {
    const int slot = part % half * 16 + in_block;
    if (part >= half && part < 2 * half) {
#pragma unroll
      for (int k = 0; k < 18; k++) shared[k * 128 + slot] = sum[k];
    }
    __syncthreads();
    if (part < half) {
#pragma unroll
      for (int k = 0; k < 18; k++) sum[k] += shared[k * 128 + slot];
    }
    __syncthreads();
  }
  if (part == 0) {
#pragma unroll
    for (int k = 0; k < 18; k++) shared[(in_block * 2 + k % 2) * 9 + k / 2] = sum[k];
  }
  __syncthreads();
  for (int e = threadIdx.x; e < 288; e += 256) {
    const int weight = first_pair * 18 + e;
    if (weight >= 576) break;
    const int group = weight / 9, m = 0, strip = weight % 9;
    const float total = shared[e];
    tgc_store(p.partial0, k_slice * 576LL + group * 9 + strip, total);
  }
}

// 2 independent stages in one launch of 512 x 256 threads.
TGC_STAGE(pack_cadd55af43,
  contract_convolution_e7440db701_params stage0;
  contract_convolution_weight_gradient_slices_30e5bc821e_params stage1;
) {
  if (virtual_block < 256) contract_convolution_e7440db701_stage(virtual_block, p.stage0, smem);
  else contract_convolution_weight_gradient_slices_30e5bc821e_stage(virtual_block - 256, p.stage1, smem);
}

// Second stage, 576 sums of 128 slices: convolution_weight_gradient.
// Stores convolution_weight_gradient (64, 1, 3, 3) bfloat16.
// Grid 36 x 256 threads, 296064 bytes moved at least.
TGC_STAGE(contract_convolution_weight_gradient_join_389b2461aa,
  float* partial0;
  tgc_bfloat16* out0;
) {
  float* const shared = reinterpret_cast<float*>(smem);
  const int result = threadIdx.x % 16, k_group = threadIdx.x / 16;
  const int output = virtual_block * 16 + result;
  float sum = 0.0f;
  if (output < 576) {
#pragma unroll 16
    for (int turn = 0; turn < 8; turn++) {
      const int k_slice = turn * 16 + k_group;
      if (k_slice < 128) sum = (float)(sum + tgc_load(p.partial0, k_slice * 576LL + output));
    }
  }
  shared[threadIdx.x] = sum;
  __syncthreads();
  if (k_group == 0 && output < 576) {
    float total = sum;
#pragma unroll
    for (int other = 1; other < 16; other++) total = (float)(total + shared[other * 16 + result]);
    const float rounded0 = tgc_cast<tgc_bfloat16>(total);
    tgc_store(p.out0, output, total);
  }
}
