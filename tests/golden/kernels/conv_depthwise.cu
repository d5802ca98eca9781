// conv_depthwise, 8 images of 24 channels, 1 x 4 results of 1 channel a thread: convolution add maximum.
// Stores maximum (8, 24, 28, 28) float32.
// Grid 147 x 256 threads, 1205184 bytes moved at least.
TGC_STAGE(contract_convolution_add_maximum_1cbb37f83c,
  const float* in0;
  float* out0;
  const float* in1;
  const float* in2;
) {
  const int position = virtual_block * 256 + threadIdx.x;
  const int column_index = int(position % 7), row_index = int(position / 7 % 28);
  const int output = int(position / 196 % 24), image = int(position / 4704);
  const float in0 = tgc_load(p.in0, output);
  float sum[1][4] = {};
  const int channel = output;
  float weight[9];
#pragma unroll
  for (int tap = 0; tap < 9; tap++) {
    const float in1 = tgc_load(p.in1, output * 9 + tap);
    weight[tap] = in1;
  }
#pragma unroll
  for (int i = 0; i < 3; i++) {
    const int y = row_index + i - 1;
    float inputs[12] = {};
#pragma unroll
    for (int k = 0; k < 3; k++) {
      const int x = column_index + k - 1;
      {
        const bool inside = y >= 0 && y < 28 && x >= 0 && x < 7;
        const tgc_vector<float, 4> in2x4 = tgc_load_vector_if<4>(inside, p.in2,
            image * 18816 + channel * 784 + y * 28 + x * 4);
#pragma unroll
        for (int v = 0; v < 4; v++) {
          const float in2 = tgc_element(in2x4, v);
          inputs[k * 4 + v] = in2;
        }
      }
    }
#pragma unroll
    for (int tap_y = 0; tap_y < 3; tap_y++) {
      // Of the rows of results, the one that reads row i with this tap.
      const int down = i - tap_y, r = down;
      if (down < 0 || r >= 1) continue;
#pragma unroll
      for (int tap_x = 0; tap_x < 3; tap_x++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
          const int across = j + tap_x + 3;
          sum[r][j] = tgc_multiply_add(weight[tap_y * 3 + tap_x], inputs[across], sum[r][j]);
        }
      }
    }
  }
  const int row = row_index;
  const int column = column_index;
  tgc_vector<float, 4> out0x4;
#pragma unroll
  for (int v = 0; v < 4; v++) {
    const float total = sum[0][v];
    const float add0 = total + in0;
    const float maximum0 = tgc_max(add0, 0.0f);
    out0x4.at[v] = tgc_to_storage<float>(maximum0);
  }
  tgc_store_vector(p.out0, image * 18816 + output * 784 + row * 28 + column * 4, out0x4);
}
