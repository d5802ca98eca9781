// winograd_transforms, F(4 x 4, 3 x 3), kernels: winograd.
// Stores winograd (36, 64, 32) float32.
// Grid 8 x 256 threads, 368640 bytes moved at least.
TGC_STAGE(winograd_kernels_03ab2db1fe,
  const float* in0;
  float* out0;
) {
  const int global_thread = virtual_block * 256 + threadIdx.x;
  if (global_thread >= 2048) return;
  const int channel = int(global_thread / 32), image_tile = int(global_thread % 32);
  const int image = image_tile, tile = 0;
  const int tile_y = tile, tile_x = 0;
  float from[3][3];
#pragma unroll
  for (int u = 0; u < 3; u++) {
#pragma unroll
    for (int v = 0; v < 3; v++) {
      const float in0 = tgc_load(p.in0, image * 576 + channel * 9 + u * 3 + v);
      from[u][v] = in0;
    }
  }
  float half[6][3];
#pragma unroll
  for (int v = 0; v < 3; v++) {
    half[0][v] = from[0][v];
    half[1][v] = tgc_fma(-0.333333333f, from[2][v], tgc_fma(-0.333333333f, from[1][v],
        -0.333333333f * from[0][v]));
    half[2][v] = tgc_fma(0.333333333f, from[2][v], tgc_fma(-0.333333333f, from[1][v],
        0.333333333f * from[0][v]));
    half[3][v] = tgc_fma(0.266666667f, from[2][v], tgc_fma(0.133333333f, from[1][v],
        0.0666666667f * from[0][v]));
    half[4][v] = tgc_fma(-0.266666667f, from[2][v], tgc_fma(0.533333333f, from[1][v],
        -1.06666667f * from[0][v]));
    half[5][v] = from[2][v];
  }
#pragma unroll
  for (int f = 0; f < 6; f++) {
    float to[6];
    to[0] = half[f][0];
    to[1] = tgc_fma(-0.333333333f, half[f][2], tgc_fma(-0.333333333f, half[f][1], -0.333333333f * half[f][0]));
    to[2] = tgc_fma(0.333333333f, half[f][2], tgc_fma(-0.333333333f, half[f][1], 0.333333333f * half[f][0]));
    to[3] = tgc_fma(0.266666667f, half[f][2], tgc_fma(0.133333333f, half[f][1], 0.0666666667f * half[f][0]));
    to[4] = tgc_fma(-0.266666667f, half[f][2], tgc_fma(0.533333333f, half[f][1], -1.06666667f * half[f][0]));
    to[5] = half[f][2];
#pragma unroll
    for (int g = 0; g < 6; g++) {
      tgc_store(p.out0, f * 12288 + g * 2048 + channel * 32 + image_tile, to[g]);
    }
  }
}

// winograd_transforms, F(4 x 4, 3 x 3), images: winograd.
// Stores winograd (36, 32, 64) float32.
// Grid 8 x 256 threads, 425984 bytes moved at least.
TGC_STAGE(winograd_images_aeb54ee8a8,
  const float* in0;
  float* out0;
) {
  const int global_thread = virtual_block * 256 + threadIdx.x;
  if (global_thread >= 2048) return;
  const int channel = int(global_thread / 64), image_tile = int(global_thread % 64);
  const int image = image_tile / 16, tile = image_tile % 16;
  const int tile_y = tile / 4, tile_x = tile % 4;
  float from[6][6];
#pragma unroll
  for (int u = 0; u < 6; u++) {
    const tgc_vector<float, 4> in0x4 = tile_y * 4 + u >= 1 && tile_y * 4 + u < 17 ? tgc_load_vector<4>(p.in0,
        image * 8192 + channel * 256 + tile_y * 64 + u * 16 + tile_x * 4 - 16) : tgc_vector<float, 4>{};
    const float in0_1 = tile_y * 4 + u >= 1 && tile_y * 4 + u < 17 && tile_x >= 1 ? tgc_load(p.in0,
        image * 8192 + channel * 256 + tile_y * 64 + u * 16 + tile_x * 4 - 17) : 0.0f;
    const float pad1 = tile_y * 4 + u >= 1 && tile_y * 4 + u < 17 && tile_x >= 1 ? in0_1 : 0.0f;
    from[u][0] = pad1;
    const float in0_2 = tile_y * 4 + u >= 1 && tile_y * 4 + u < 17 && tile_x < 3 ? tgc_load(p.in0,
        image * 8192 + channel * 256 + tile_y * 64 + u * 16 + tile_x * 4 - 12) : 0.0f;
    const float pad2 = tile_y * 4 + u >= 1 && tile_y * 4 + u < 17 && tile_x < 3 ? in0_2 : 0.0f;
    from[u][5] = pad2;
#pragma unroll
    for (int v = 0; v < 4; v++) {
      const float in0 = tgc_element(in0x4, v);
      const float pad0 = tile_y * 4 + u >= 1 && tile_y * 4 + u < 17 ? in0 : 0.0f;
      from[u][1 + v] = pad0;
    }
  }
  float half[6][6];
#pragma unroll
  for (int v = 0; v < 6; v++) {
    half[0][v] = tgc_fma(-1.5f, from[3][v], tgc_fma(-2.0f, from[2][v], tgc_fma(1.5f, from[1][v],
        from[0][v] + from[4][v])));
    half[1][v] = tgc_fma(-0.5f, from[3][v], tgc_fma(-2.5f, from[2][v], -from[1][v] + from[4][v]));
    half[2][v] = tgc_fma(-2.5f, from[3][v], tgc_fma(0.5f, from[2][v], from[1][v] + from[4][v]));
    half[3][v] = tgc_fma(0.5f, from[3][v], tgc_fma(-0.5f, from[1][v], -from[2][v] + from[4][v]));
    half[4][v] = tgc_fma(-2.0f, from[3][v], tgc_fma(2.0f, from[1][v], -from[2][v] + from[4][v]));
    half[5][v] = tgc_fma(-1.5f, from[4][v], tgc_fma(-2.0f, from[3][v], tgc_fma(1.5f, from[2][v],
        from[1][v] + from[5][v])));
  }
#pragma unroll
  for (int f = 0; f < 6; f++) {
    float to[6];
    to[0] = tgc_fma(-1.5f, half[f][3], tgc_fma(-2.0f, half[f][2], tgc_fma(1.5f, half[f][1],
        half[f][0] + half[f][4])));
    to[1] = tgc_fma(-0.5f, half[f][3], tgc_fma(-2.5f, half[f][2], -half[f][1] + half[f][4]));
    to[2] = tgc_fma(-2.5f, half[f][3], tgc_fma(0.5f, half[f][2], half[f][1] + half[f][4]));
    to[3] = tgc_fma(0.5f, half[f][3], tgc_fma(-0.5f, half[f][1], -half[f][2] + half[f][4]));
    to[4] = tgc_fma(-2.0f, half[f][3], tgc_fma(2.0f, half[f][1], -half[f][2] + half[f][4]));
    to[5] = tgc_fma(-1.5f, half[f][4], tgc_fma(-2.0f, half[f][3], tgc_fma(1.5f, half[f][2],
        half[f][1] + half[f][5])));
#pragma unroll
    for (int g = 0; g < 6; g++) {
      tgc_store(p.out0, f * 12288 + g * 2048 + channel * 64 + image_tile, to[g]);
    }
  }
}

// 2 independent stages in one launch of 16 x 256 threads.
TGC_STAGE(pack_f88df8172f,
  winograd_kernels_03ab2db1fe_params stage0;
  winograd_images_aeb54ee8a8_params stage1;
) {
  if (virtual_block < 8) winograd_kernels_03ab2db1fe_stage(virtual_block, p.stage0, smem);
  else winograd_images_aeb54ee8a8_stage(virtual_block - 8, p.stage1, smem);
}

// contract 36 x 64 x 64 x 32, tiles of 32 x 32 x 32, split-K 1, 9437184 FLOPs: matmul.
// Stores matmul (36, 64, 64) float32.
// Grid 144 x 256 threads, 1179648 bytes moved at least.
TGC_STAGE(contract_matmul_9e22dc85d7,
  const float* in0;
  const float* in1;
  float* out0;
) {
  const int tile_index = virtual_block % 4;
  const int batch = virtual_block / 4 % 36;
  const int k_slice = 0;
  const int band = tile_index / 4 * 2;
  const int band_rows = 2 - band < 2 ? 2 - band : 2;
  const int tile_m = band + tile_index % 4 % band_rows;
  const int tile_n = tile_index % 4 / band_rows;
  const int tile_thread = threadIdx.x % 64, k_group = threadIdx.x / 64;
  const int lane_m = tile_thread / 32 * 16 + tile_thread % 32 / 8 * 4;
  const int lane_n =
      tile_thread % 32 % 8 * 4;
  typedef tgc_vector<float, 4> fragment;
  float* const shared_a = reinterpret_cast<float*>(smem);
  float* const shared_b = shared_a + 2 * 32 * 36;
  float prefetch_a[4], prefetch_b[4];
  float sum[4][4] = {};
  float a[2][4], b[2][4];
  const int k_begin = k_slice * 32;
  const int k_end = k_begin + 32 < 32 ? k_begin + 32 : 32;
  const int step_b = (tile_n * 32) / 4 + threadIdx.x % 8;
  const int offset1 = batch * 2048 + step_b * 4;

  auto fetch = [&](int k_first) {
    {
      const int step_a = k_first / 4 + (threadIdx.x % 4 + threadIdx.x / 128 * 4);
      const int offset0 = batch * 2048 + step_a * 4;
      const int row = threadIdx.x / 4 % 32;
      const int m = tile_m * 32 + row;
#pragma unroll
      for (int v = 0; v < 4; v++) prefetch_a[v] = 0.0f;
      if (m < 64 && step_a * 4 < k_end) {
        const tgc_vector<float, 4> in0x4 = tgc_load_vector<4>(p.in0, m * 32 + offset0);
#pragma unroll
        for (int v = 0; v < 4; v++) {
          const float in0 = tgc_element(in0x4, v);
          prefetch_a[v] = in0;
        }
      }
    }
    {
      const int row = threadIdx.x / 8;
      const int k = k_first + row;
#pragma unroll
      for (int v = 0; v < 4; v++) prefetch_b[v] = 0.0f;
      if (k < k_end && step_b < 16) {
        const tgc_vector<float, 4> in1x4 = tgc_load_vector<4>(p.in1, k * 64 + offset1);
#pragma unroll
        for (int v = 0; v < 4; v++) {
          const float in1 = tgc_element(in1x4, v);
          prefetch_b[v] = in1;
        }
      }
    }
  };
  auto put = [&](int buffer) {
    {
      float* const tile =
          shared_a + buffer * 32 * 36 + (threadIdx.x % 4 + threadIdx.x / 128 * 4) * 144 + threadIdx.x / 4 % 32;
#pragma unroll
      for (int v = 0; v < 4; v++)
        tile[v * 36] = prefetch_a[v];
    }
    {
      float* const tile =
          shared_b + buffer * 32 * 36 + threadIdx.x % 8 * 4 + threadIdx.x / 8 * 36;
#pragma unroll
      for (int v = 0; v < 4; v++)
        tile[v] = prefetch_b[v];
    }
  };
  auto read = [&](int slot, int buffer, int step) {
    const int shared_row = buffer * 32 + step * 4 + k_group;
    const fragment fragment_a = *reinterpret_cast<const fragment*>(
        shared_a + shared_row * 36 + lane_m);
#pragma unroll
    for (int q = 0; q < 4; q++) a[slot][q] = fragment_a.at[q];
    const fragment fragment_b = *reinterpret_cast<const fragment*>(
        shared_b + shared_row * 36 + lane_n);
#pragma unroll
    for (int q = 0; q < 4; q++) b[slot][q] = fragment_b.at[q];
  };

  fetch(k_begin);
  put(0);
  __syncthreads();
  read(0, 0, 0);
  int buffer = 0;
#pragma unroll 1
  for (int k_first = k_begin; k_first < k_end; k_first += 32) {
#pragma unroll
    for (int step = 0; step < 8; step++) {
      if (step + 1 < 8) {
        read((step + 1) % 2, buffer, step + 1);
      }
#pragma unroll
      for (int i = 0; i < 4; i++)
#pragma unroll
        for (int back = 0; back < 4; back++) {
          const int j = i % 2 ? 4 - 1 - back : back;
          sum[i][j] = tgc_multiply_add(a[step % 2][i], b[step % 2][j], sum[i][j]);
        }
    }
    buffer ^= 1;
  }
  float* const shared_sum = reinterpret_cast<float*>(smem);
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 4; i++)
#pragma unroll
    for (int j = 0; j < 4; j++)
      shared_sum[(k_group * 32 + lane_m + i / 4 * 16 + i % 4) * 32 + lane_n +
                 j / 4 * 32 + j % 4] = sum[i][j];
  __syncthreads();
#pragma unroll
  for (int turn = 0; turn < 1; turn++) {
    const int e = turn * 256 + threadIdx.x;
    if (e >= 256) continue;
    const int m = tile_m * 32 + e / 8;
    const int strip = tile_n * 8 + e % 8;
    if (m >= 64 || strip >= 16) continue;
    tgc_vector<float, 4> out0x4;
#pragma unroll
    for (int v = 0; v < 4; v++) {
      float total = shared_sum[e * 4 + v];
#pragma unroll
      for (int other = 1; other < 4; other++) {
        const float addend = shared_sum[other * 32 * 32 + e * 4 + v];
        total = (float)(total + addend);
      }
      out0x4.at[v] = tgc_to_storage<float>(total);
    }
    tgc_store_vector(p.out0, batch * 4096 + m * 64 + strip * 4, out0x4);
  }
}

// winograd_transforms, F(4 x 4, 3 x 3), results: unwinograd exp.
// Stores exp (4, 64, 16, 16) float32.
// Grid 256 x 256 threads, 851968 bytes moved at least.
TGC_STAGE(winograd_unwinograd_exp_results_a9546ae05e,
  const float* in0;
  float* out0;
) {
  // A block computes tiles of 1 neighbouring channels of some images, or of rows of one
  // image. They pass through shared memory, so that the epilogue's accesses coalesce.
  const int group = virtual_block / 64, channel_group = virtual_block % 64;
  const int first_image = group, band = 0;
  float* const shared = reinterpret_cast<float*>(smem);
  {
    const int local = threadIdx.x % 16;
    const int channel = channel_group + threadIdx.x / 16;
    const int image = first_image + local / 16, tile = band * 16 + local % 16;
    if (threadIdx.x < 16 && image < 4 && tile < 16) {
      const int image_tile = image * 16 + tile;
      float from[6][6];
#pragma unroll
      for (int f = 0; f < 6; f++)
#pragma unroll
        for (int g = 0; g < 6; g++) {
          const float in0 = tgc_load(p.in0, f * 24576 + g * 4096 + channel * 64 + image_tile);
          from[f][g] = in0;
        }
      float half[4][6];
#pragma unroll
      for (int v = 0; v < 6; v++) {
        half[0][v] = from[0][v] + from[1][v] + from[2][v] + from[3][v] + from[4][v];
        half[1][v] = tgc_fma(-0.5f, from[4][v], tgc_fma(2.0f, from[3][v], from[1][v] - from[2][v]));
        half[2][v] = tgc_fma(0.25f, from[4][v], tgc_fma(4.0f, from[3][v], from[1][v] + from[2][v]));
        half[3][v] = tgc_fma(-0.125f, from[4][v], tgc_fma(8.0f, from[3][v],
            from[1][v] - from[2][v] + from[5][v]));
      }
#pragma unroll
      for (int f = 0; f < 4; f++) {
        float to[4];
        to[0] = half[f][0] + half[f][1] + half[f][2] + half[f][3] + half[f][4];
        to[1] = tgc_fma(-0.5f, half[f][4], tgc_fma(2.0f, half[f][3], half[f][1] - half[f][2]));
        to[2] = tgc_fma(0.25f, half[f][4], tgc_fma(4.0f, half[f][3], half[f][1] + half[f][2]));
        to[3] = tgc_fma(-0.125f, half[f][4], tgc_fma(8.0f, half[f][3], half[f][1] - half[f][2] + half[f][5]));
#pragma unroll
        for (int g = 0; g < 4; g++) {
          shared[(f * 4 + g) * 264 + threadIdx.x] = to[g];
        }
      }
    }
  }
  __syncthreads();
  {
    const unsigned e = threadIdx.x;  // divides in fewer instructions than an int
    const unsigned local_image = e / 64, run_strip = e % 64;
    const int image = first_image + local_image,
              strip = channel_group * 64 + band * 64 + run_strip;
    if ((256 <= 64 || e < 64)) {
      tgc_vector<float, 4> out0x4;
      const unsigned at = band * 256u + run_strip * 4u;
      const unsigned y = at % 256u / 16u, x = at % 16u;
      const float* const from = shared + (y % 4u * 4u + x % 4u) * 264u +
                                at / 256u * 16u + local_image * 16u +
                                (y / 4u - band * 4u) * 4u + x / 4u;
#pragma unroll
      for (int v = 0; v < 4; v++) {
        const float total = from[v * 264];
        const float exp0 = tgc_exp(total);
        out0x4.at[v] = tgc_to_storage<float>(exp0);
      }
      tgc_store_vector(p.out0, image * 16384 + strip * 4, out0x4);
    }
  }
}
