// recurrence, 35 steps of 64 sequences in 2 parts, 650 units, 10 a block, 7571200000 FLOPs: lstm output output
//   output.
// Stores output (35, 64, 650) float32; output (35, 64, 2600) float32; output (35, 64, 650) float32.
// Grid 130 x 256 threads, 65000000 bytes moved at least.
TGC_STAGE(recurrence_lstm_77781b0d2c,
  unsigned long long* words0;
  const float* in0;
  float* out0;
  float* out1;
  float* out2;
  const float* in1;
) {
  const int part = virtual_block / 65, block = virtual_block % 65;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row_lane = lane / 4, column_lane = lane % 4;
  const int unit_first = block * 10;
  float* const weights = reinterpret_cast<float*>(smem);
  float* const own_states = reinterpret_cast<float*>(weights + 26240);
  float* const staged = own_states + 320;
  unsigned long long* const flags = p.words0;
  float* const exchange = reinterpret_cast<float*>(flags + 130);
  const int flag_first = part * 65;
  const int first_k = warp * 96;
  const int last_k = first_k + 96 < 650 ? first_k + 96 : 650;
  const int first_owner = first_k / 10, last_owner = (last_k - 1) / 10;
#pragma unroll 1
  for (int e = threadIdx.x; e < 26240; e += 256) {
    const int k = e % 656, column = e / 656;
    const int gate = column / 10, unit = unit_first + column % 10;
    float value = 0.0f;
    if (gate < 4 && unit < 650 && k < 650) {
      const float in1 = tgc_load(p.in1, gate * 422500 + unit * 650 + k);
      value = in1;
    }
    weights[column * 656 + k] = tgc_to_storage<float>(value);
  }
  const unsigned long long seen = tgc_grid_flag(flags, flag_first + block);
  // Waits until the blocks that make this warp's states have published so many steps of this launch.
  auto await = [&](int steps) {
    for (int owner = first_owner + lane; owner <= last_owner; owner += 32)
      tgc_grid_flag_await(flags, flag_first + owner, seen + steps);
    __syncwarp();
  };
  auto publish = [&](int flag, int steps) {
    __syncthreads();
    if (threadIdx.x == 0) tgc_grid_flag_publish(flags, flag, seen + steps);
  };
  float* const own_stage = staged + warp * 1280;
  // The sums of a tile over this warp's states, to its own shared memory. Four lanes load 64 bytes of
  // a row, 16 each; the first and the third number of a lane are its k of two instructions, the others
  // those of the lower halves.
  const float* multiplied = nullptr;
  auto multiply = [&](const float* source, int row_first, int row_end) {
    multiplied = source + row_first * 656;
    float sum[2][5][4] = {};
#pragma unroll 4
    for (int first = 0; first < 6; first += 2) {
      tgc_vector<unsigned, 4> states[2][2][2];
#pragma unroll
      for (int c = 0; c < 2; c++)
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
          for (int below = 0; below < 2; below++) {
            // Behind the last row or k a valid one, whose sums nobody reads or which is left out.
            const int row = row_first + i * 16 + below * 8 + row_lane;
            const int b = row < row_end ? row : row_end - 1;
            const int start = first_k + (first + c) * 16, k = start < last_k ? start : 0;
            states[c][i][below] = *reinterpret_cast<const tgc_vector<unsigned, 4>*>(
                tgc_address(source, b * 656 + k + column_lane * 4, 4));
          }
#pragma unroll
      for (int c = 0; c < 2 && first + c < 6; c++) {
        const int k = first_k + (first + c) * 16;
        if (k < last_k) {
          tgc_vector<unsigned, 4> w[5];
#pragma unroll
          for (int j = 0; j < 5; j++)
            w[j] = *reinterpret_cast<const tgc_vector<unsigned, 4>*>(
                weights + (j * 8 + row_lane) * 656 + k + column_lane * 4);
#pragma unroll
          for (int half = 0; half < 2; half++) {
            unsigned b[5][2], b_low[5][2];
#pragma unroll
            for (int j = 0; j < 5; j++)
#pragma unroll
              for (int r = 0; r < 2; r++) tgc_tf32_split_unsaturated(w[j].at[half * 2 + r], b[j][r],
                  b_low[j][r]);
#pragma unroll
            for (int i = 0; i < 2; i++) {
              unsigned a[4], a_low[4];
#pragma unroll
              for (int r = 0; r < 4; r++)
                tgc_tf32_split_unsaturated(states[c][i][r % 2].at[half * 2 + r / 2], a[r], a_low[r]);
#pragma unroll
              for (int j = 0; j < 5; j++) {
                float part[4] = {};  // of 8 k, small products first: the unit's accumulator truncates
                tgc_mma_tf32(part, a_low, b[j]);
                tgc_mma_tf32(part, a, b_low[j]);
                tgc_mma_tf32(part, a, b[j]);
#pragma unroll
                for (int q = 0; q < 4; q++) sum[i][j][q] += part[q];
              }
            }
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int j = 0; j < 5; j++)
#pragma unroll
        for (int q = 0; q < 4; q++)
          own_stage[(i * 16 + q / 2 * 8 + row_lane) * 40 + j * 8 + column_lane * 2 + q % 2] =
              sum[i][j][q];
    __syncthreads();
  };
  auto total = [&](int row, int column) {
    float value = 0.0f;
#pragma unroll
    for (int w = 0; w < 8; w++) value += staged[w * 1280 + row * 40 + column];
    // What is not finite is summed again in the order of k: low parts of infinities are undefined.
    if (!tgc_isfinite(value)) {
      value = 0.0f;
#pragma unroll 1
      for (int k = 0; k < 650; k++)
        value = tgc_fma(tgc_load(multiplied, row * 656 + k), weights[column * 656 + k], value);
    }
    return value;
  };
  const int row_first = part * 32;
  const int part_end = part * 32 + 32 < 64 ? part * 32 + 32 : 64;
  const int row_end = row_first + 32 < part_end ? row_first + 32 : part_end;
  const int before = 0;
#pragma unroll
  for (int pair = 0; pair < 2; pair++) {
    const int e = pair * 256 + threadIdx.x, row = e / 10, own = e % 10;
    const int b = row_first + row, unit = unit_first + own;
    if (b < row_end && unit < 650) {
      own_states[e] = 0.0f;
      tgc_store(exchange, b * 656 + unit, 0.0f);
    }
  }
  publish(flag_first + block, before + 1);
#pragma unroll 1
  for (int step = 0; step < 35; step++) {
    const int t = step;
    float ahead[2][4];
#pragma unroll
    for (int pair = 0; pair < 2; pair++) {
      const int e = pair * 256 + threadIdx.x, row = e / 10, own = e % 10;
      const int b = row_first + row, unit = unit_first + own;
      if (b < row_end && unit < 650) {
        const float in0 = tgc_load(p.in0, t * 166400 + b * 2600 + unit);
        ahead[pair][0] = in0;
        const float in0_1 = tgc_load(p.in0, t * 166400 + b * 2600 + unit + 650);
        ahead[pair][1] = in0_1;
        const float in0_2 = tgc_load(p.in0, t * 166400 + b * 2600 + unit + 1300);
        ahead[pair][2] = in0_2;
        const float in0_3 = tgc_load(p.in0, t * 166400 + b * 2600 + unit + 1950);
        ahead[pair][3] = in0_3;
      }
    }
    await(before + step + 1);
    multiply(exchange + step % 2 * 41984, row_first, row_end);
    float* const next = exchange + (step + 1) % 2 * 41984;
    float made[2][6];  // stored when others no longer wait for it
#pragma unroll
    for (int pair = 0; pair < 2; pair++) {
      const int e = pair * 256 + threadIdx.x, row = e / 10, own = e % 10;
      const int b = row_first + row, unit = unit_first + own;
      if (b < row_end && unit < 650) {
        const float i = tgc_sigmoid(ahead[pair][0] + total(row, own));
        const float f = tgc_sigmoid(ahead[pair][1] + total(row, 10 + own));
        const float g = tgc_tanh(ahead[pair][2] + total(row, 20 + own));
        const float o = tgc_sigmoid(ahead[pair][3] + total(row, 30 + own));
        const float memory = f * own_states[e] + i * g;
        const float state = o * tgc_tanh(memory);
        own_states[e] = memory;
        tgc_store(next, b * 656 + unit, tgc_cast<float>(state));
        made[pair][0] = state;
        made[pair][1] = memory;
        made[pair][2] = i;
        made[pair][3] = f;
        made[pair][4] = g;
        made[pair][5] = o;
      }
    }
    if (step + 1 < 35) publish(flag_first + block, before + step + 2);
    else __syncthreads();
#pragma unroll
    for (int pair = 0; pair < 2; pair++) {
      const int e = pair * 256 + threadIdx.x, row = e / 10, own = e % 10;
      const int b = row_first + row, unit = unit_first + own;
      if (b < row_end && unit < 650) {
        tgc_store(p.out0, t * 41600 + b * 650 + unit, made[pair][0]);
        tgc_store(p.out1, t * 41600 + b * 650 + unit, made[pair][1]);
        tgc_store(p.out2, t * 166400 + b * 2600 + unit, made[pair][2]);
        tgc_store(p.out2, t * 166400 + b * 2600 + unit + 650, made[pair][3]);
        tgc_store(p.out2, t * 166400 + b * 2600 + unit + 1300, made[pair][4]);
        tgc_store(p.out2, t * 166400 + b * 2600 + unit + 1950, made[pair][5]);
      }
    }
  }
}

// recurrence, 35 steps of 64 sequences in 1 parts, 650 units, 5 a block, 7571200000 FLOPs: lstm_backward
//   output.
// Stores output (35, 64, 2600) float32.
// Grid 132 x 256 threads, 65000000 bytes moved at least.
TGC_STAGE(recurrence_lstm_backward_78eb42c5e7,
  unsigned long long* words0;
  const float* in0;
  const float* in1;
  const float* in2;
  float* out0;
  const float* in3;
) {
  const int part = virtual_block / 132, block = virtual_block % 132;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row_lane = lane / 4, column_lane = lane % 4;
  const int unit_first = block * 5;
  float* const weights = reinterpret_cast<float*>(smem);
  float* const own_states = reinterpret_cast<float*>(weights + 15744);
  float* const staged = own_states + 320;
  unsigned long long* const flags = p.words0;
  float* const exchange = reinterpret_cast<float*>(flags + 264);
  const int flag_first = part * 132;
  const int first_k = warp * 96;
  const int last_k = first_k + 96 < 650 ? first_k + 96 : 650;
  const int first_owner = first_k / 5, last_owner = (last_k - 1) / 5;
  const int gate = block % 4, cluster = block / 4;
  float* const sums = reinterpret_cast<float*>(exchange + 2 * 167936);
  // A unit's gradient by the state before, of all its gates.
  auto gates_sum = [&](int b, int own) {
    float value = 0.0f;
#pragma unroll
    for (int g = 0; g < 4; g++)
      value += tgc_load(sums, ((cluster * 4 + g) * 64 + b) * 24 + gate * 5 + own);
    return value;
  };
#pragma unroll 1
  for (int e = threadIdx.x; e < 15744; e += 256) {
    const int column = e % 24, k = e / 24;
    const int unit = cluster * 20 + column;
    float value = 0.0f;
    if (column < 20 && unit < 650 && k < 650) {
      const float in3 = tgc_load(p.in3, gate * 422500 + k * 650 + unit);
      value = in3;
    }
    weights[column * 656 + k] = tgc_to_storage<float>(value);
  }
  const unsigned long long seen = tgc_grid_flag(flags, flag_first + block);
  // Waits until the blocks that make this warp's states have published so many steps of this launch.
  auto await = [&](int steps) {
    for (int owner = first_owner + lane; owner <= last_owner; owner += 32)
      tgc_grid_flag_await(flags, flag_first + owner, seen + steps);
    __syncwarp();
  };
  auto publish = [&](int flag, int steps) {
    __syncthreads();
    if (threadIdx.x == 0) tgc_grid_flag_publish(flags, flag, seen + steps);
  };
  float* const own_stage = staged + warp * 1536;
  // The sums of a tile over this warp's states, to its own shared memory. Four lanes load 64 bytes of
  // a row, 16 each; the first and the third number of a lane are its k of two instructions, the others
  // those of the lower halves.
  const float* multiplied = nullptr;
  auto multiply = [&](const float* source, int row_first, int row_end) {
    multiplied = source + row_first * 656;
    float sum[4][3][4] = {};
#pragma unroll 4
    for (int first = 0; first < 6; first += 1) {
      tgc_vector<unsigned, 4> states[1][4][2];
#pragma unroll
      for (int i = 0; i < 4; i++)
#pragma unroll
        for (int below = 0; below < 2; below++) {
          // Behind the last row or k a valid one, whose sums nobody reads or which is left out.
          const int row = row_first + i * 16 + below * 8 + row_lane;
          const int b = row < row_end ? row : row_end - 1;
          const int start = first_k + first * 16, k = start < last_k ? start : 0;
          states[0][i][below] = *reinterpret_cast<const tgc_vector<unsigned, 4>*>(
              tgc_address(source, b * 656 + k + column_lane * 4, 4));
        }
#pragma unroll
      for (int c = 0; c < 1 && first + c < 6; c++) {
        const int k = first_k + (first + c) * 16;
        if (k < last_k) {
          tgc_vector<unsigned, 4> w[3];
#pragma unroll
          for (int j = 0; j < 3; j++)
            w[j] = *reinterpret_cast<const tgc_vector<unsigned, 4>*>(
                weights + (j * 8 + row_lane) * 656 + k + column_lane * 4);
#pragma unroll
          for (int half = 0; half < 2; half++) {
            unsigned b[3][2], b_low[3][2];
#pragma unroll
            for (int j = 0; j < 3; j++)
#pragma unroll
              for (int r = 0; r < 2; r++) tgc_tf32_split_unsaturated(w[j].at[half * 2 + r], b[j][r],
                  b_low[j][r]);
#pragma unroll
            for (int i = 0; i < 4; i++) {
              unsigned a[4], a_low[4];
#pragma unroll
              for (int r = 0; r < 4; r++)
                tgc_tf32_split_unsaturated(states[c][i][r % 2].at[half * 2 + r / 2], a[r], a_low[r]);
#pragma unroll
              for (int j = 0; j < 3; j++) {
                float part[4] = {};  // of 8 k, small products first: the unit's accumulator truncates
                tgc_mma_tf32(part, a_low, b[j]);
                tgc_mma_tf32(part, a, b_low[j]);
                tgc_mma_tf32(part, a, b[j]);
#pragma unroll
                for (int q = 0; q < 4; q++) sum[i][j][q] += part[q];
              }
            }
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
      for (int j = 0; j < 3; j++)
#pragma unroll
        for (int q = 0; q < 4; q++)
          own_stage[(i * 16 + q / 2 * 8 + row_lane) * 24 + j * 8 + column_lane * 2 + q % 2] =
              sum[i][j][q];
    __syncthreads();
  };
  auto total = [&](int row, int column) {
    float value = 0.0f;
#pragma unroll
    for (int w = 0; w < 8; w++) value += staged[w * 1536 + row * 24 + column];
    // What is not finite is summed again in the order of k: low parts of infinities are undefined.
    if (!tgc_isfinite(value)) {
      value = 0.0f;
#pragma unroll 1
      for (int k = 0; k < 650; k++)
        value = tgc_fma(tgc_load(multiplied, row * 656 + k), weights[column * 656 + k], value);
    }
    return value;
  };
  const int row_first = part * 64;
  const int part_end = part * 64 + 64 < 64 ? part * 64 + 64 : 64;
  const int row_end = row_first + 64 < part_end ? row_first + 64 : part_end;
  const int before = 0;
#pragma unroll
  for (int pair = 0; pair < 2; pair++) {
    const int e = pair * 256 + threadIdx.x, row = e / 5, own = e % 5;
    const int b = row_first + row, unit = unit_first + own;
    if (b < row_end && unit < 650) {
      own_states[e] = 0.0f;
    }
  }
#pragma unroll 1
  for (int step = 0; step < 35; step++) {
    const int t = 34 - step;
    float ahead[2][8];
    if (step < 35) {
#pragma unroll
      for (int pair = 0; pair < 2; pair++) {
        const int e = pair * 256 + threadIdx.x, row = e / 5, own = e % 5;
        const int b = row_first + row, unit = unit_first + own;
        if (b < row_end && unit < 650) {
          const float in0 = tgc_load(p.in0, t * 41600 + b * 650 + unit);
          ahead[pair][0] = in0;
          ahead[pair][1] = 0.0f;
          const float in1 = tgc_load(p.in1, t * 166400 + b * 2600 + unit);
          ahead[pair][2] = in1;
          const float in1_1 = tgc_load(p.in1, t * 166400 + b * 2600 + unit + 650);
          ahead[pair][3] = in1_1;
          const float in1_2 = tgc_load(p.in1, t * 166400 + b * 2600 + unit + 1300);
          ahead[pair][4] = in1_2;
          const float in1_3 = tgc_load(p.in1, t * 166400 + b * 2600 + unit + 1950);
          ahead[pair][5] = in1_3;
          const float in2 = tgc_load(p.in2, t * 41600 + b * 650 + unit);
          ahead[pair][6] = in2;
          if (step + 1 < 35) {
            const int earlier = t - 1;
            const float in2_1 = tgc_load(p.in2, earlier * 41600 + b * 650 + unit);
            ahead[pair][7] = in2_1;
          } else {
            ahead[pair][7] = 0.0f;
          }
        }
      }
    }
    if (step > 0) {
      await(before + step);
      multiply(exchange + (step + 1) % 2 * 167936 + gate * 41984, row_first, row_end);
#pragma unroll 1
      for (int e = threadIdx.x; e < 1536; e += 256) {
        const int row = e / 24, column = e % 24, b = row_first + row;
        if (b < row_end)
          tgc_store(sums, ((cluster * 4 + gate) * 64 + b) * 24 + column, total(row, column));
      }
      publish(132 + flag_first + block, before + step);
      if (lane < 4)
        tgc_grid_flag_await(flags, 132 + flag_first + cluster * 4 + lane,
                            seen + before + step);
      __syncwarp();
    }
    if (step < 35) {
      float* const next = exchange + step % 2 * 167936;
      float made[2][4];
#pragma unroll
      for (int pair = 0; pair < 2; pair++) {
        const int e = pair * 256 + threadIdx.x, row = e / 5, own = e % 5;
        const int b = row_first + row, unit = unit_first + own;
        if (b < row_end && unit < 650) {
          const float i = ahead[pair][2], f = ahead[pair][3], g = ahead[pair][4], o = ahead[pair][5];
          const float shown = tgc_tanh(ahead[pair][6]);
          const float by_state = ahead[pair][0] + (step > 0 ? gates_sum(b, own) : 0.0f);
          const float by_memory = own_states[e] + ahead[pair][1] + by_state * o * (1.0f - shown * shown);
          own_states[e] = by_memory * f;
          const float by_gate[4] = {
              by_memory * g * i * (1.0f - i), by_memory * ahead[pair][7] * f * (1.0f - f),
              by_memory * i * (1.0f - g * g), by_state * shown * o * (1.0f - o)};
#pragma unroll
          for (int g = 0; g < 4; g++)
            tgc_store(next, g * 41984 + b * 656 + unit, tgc_cast<float>(by_gate[g]));
          made[pair][0] = by_gate[0];
          made[pair][1] = by_gate[1];
          made[pair][2] = by_gate[2];
          made[pair][3] = by_gate[3];
        }
      }
      publish(flag_first + block, before + step + 1);
#pragma unroll
      for (int pair = 0; pair < 2; pair++) {
        const int e = pair * 256 + threadIdx.x, row = e / 5, own = e % 5;
        const int b = row_first + row, unit = unit_first + own;
        if (b < row_end && unit < 650) {
          tgc_store(p.out0, t * 166400 + b * 2600 + unit, made[pair][0]);
          tgc_store(p.out0, t * 166400 + b * 2600 + unit + 650, made[pair][1]);
          tgc_store(p.out0, t * 166400 + b * 2600 + unit + 1300, made[pair][2]);
          tgc_store(p.out0, t * 166400 + b * 2600 + unit + 1950, made[pair][3]);
        }
      }
    } else {
    }
  }
}
