// recurrence, 35 steps of 64 sequences in 2 parts, 650 units, 10 a block, 7571200000 FLOPs: lstm output output
//   output.
// Stores output (35, 64, 650) bfloat16; output (35, 64, 2600) bfloat16; output (35, 64, 650) float32.
// Grid 130 x 256 threads, 35412000 bytes moved at least.
TGC_STAGE(recurrence_lstm_7dd6820749,
  unsigned long long* words0;
  const tgc_bfloat16* in0;
  tgc_bfloat16* out0;
  float* out1;
  tgc_bfloat16* out2;
  const tgc_bfloat16* in1;
) {
  const int part = virtual_block / 65, block = virtual_block % 65;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row_lane = lane / 4, column_lane = lane % 4;
  const int unit_first = block * 10;
  tgc_bfloat16* const weights = reinterpret_cast<tgc_bfloat16*>(smem);
  float* const own_states = reinterpret_cast<float*>(weights + 26880);
  float* const staged = own_states + 320;
  unsigned long long* const flags = p.words0;
  tgc_bfloat16* const exchange = reinterpret_cast<tgc_bfloat16*>(flags + 130);
  const int flag_first = part * 65;
  const int first_k = warp * 96;
  const int last_k = first_k + 96 < 650 ? first_k + 96 : 650;
  const int first_owner = first_k / 10, last_owner = (last_k - 1) / 10;
#pragma unroll 1
  for (int e = threadIdx.x; e < 26880; e += 256) {
    const int k = e % 672, column = e / 672;
    const int gate = column / 10, unit = unit_first + column % 10;
    float value = 0.0f;
    if (gate < 4 && unit < 650 && k < 650) {
      const float in1 = tgc_load(p.in1, gate * 422500 + unit * 650 + k);
      value = in1;
    }
    weights[column * 672 + k] = tgc_to_storage<tgc_bfloat16>(value);
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
  __syncthreads();
  float* const own_stage = staged + warp * 1280;
  // Four lanes load 64 bytes of a row, 16 each: k of a lane and of an instruction are in an order of
  // their own, that of weights too.
  unsigned fragment[3][2][5][2];
#pragma unroll
  for (int chunk = 0; chunk < 3; chunk++)
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
      for (int j = 0; j < 5; j++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
          const int k = first_k + chunk * 32 + column_lane * 8 + half * 4 + r * 2;
          fragment[chunk][half][j][r] = 0;
          if (k < 672)
            fragment[chunk][half][j][r] = *reinterpret_cast<const unsigned*>(
                weights + (j * 8 + row_lane) * 672 + k);
        }
  // The sums of a tile over this warp's states, to its own shared memory.
  auto multiply = [&](const tgc_bfloat16* source, int row_first, int row_end) {
    float sum[2][5][4] = {};
    tgc_vector<unsigned, 4> states[3][2][2];
#pragma unroll
    for (int c = 0; c < 3; c++)
#pragma unroll
      for (int i = 0; i < 2; i++)
#pragma unroll
        for (int below = 0; below < 2; below++) {
          // Behind the last row or k a valid one, whose sums nobody reads or whose weights are zero.
          const int row = row_first + i * 16 + below * 8 + row_lane;
          const int b = row < row_end ? row : row_end - 1;
          const int start = first_k + c * 32, k = start < last_k ? start : 0;
          states[c][i][below] = *reinterpret_cast<const tgc_vector<unsigned, 4>*>(
              tgc_address(source, b * 672 + k + column_lane * 8, 8));
        }
#pragma unroll
    for (int c = 0; c < 3 && c < 3; c++)
#pragma unroll
      for (int half = 0; half < 2; half++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
          const tgc_vector<unsigned, 4>&upper = states[c][i][0], &lower = states[c][i][1];
          const unsigned a[4] = {upper.at[half * 2], lower.at[half * 2], upper.at[half * 2 + 1],
                                 lower.at[half * 2 + 1]};
#pragma unroll
          for (int j = 0; j < 5; j++)
            tgc_mma_bf16(sum[i][j], a, fragment[c][half][j]);
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
      tgc_store(exchange, b * 672 + unit, 0.0f);
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
    multiply(exchange + step % 2 * 43008, row_first, row_end);
    tgc_bfloat16* const next = exchange + (step + 1) % 2 * 43008;
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
        tgc_store(next, b * 672 + unit, tgc_cast<tgc_bfloat16>(state));
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

// recurrence, 35 steps of 64 sequences in 4 parts, 650 units, 20 a block, 7571200000 FLOPs: lstm_backward
//   output.
// Stores output (35, 64, 2600) bfloat16.
// Grid 132 x 256 threads, 35412000 bytes moved at least.
TGC_STAGE(recurrence_lstm_backward_55d4922f28,
  unsigned long long* words0;
  const tgc_bfloat16* in0;
  const tgc_bfloat16* in1;
  const float* in2;
  tgc_bfloat16* out0;
  const tgc_bfloat16* in3;
) {
  const int part = virtual_block / 33, block = virtual_block % 33;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row_lane = lane / 4, column_lane = lane % 4;
  const int unit_first = block * 20;
  tgc_bfloat16* const weights = reinterpret_cast<tgc_bfloat16*>(smem);
  float* const own_states = reinterpret_cast<float*>(weights + 64512);
  float* const staged = own_states + 320;
  unsigned long long* const flags = p.words0;
  tgc_bfloat16* const exchange = reinterpret_cast<tgc_bfloat16*>(flags + 132);
  const int flag_first = part * 33;
  const int first_k = warp * 352;
  const int last_k = first_k + 352 < 2688 ? first_k + 352 : 2688;
  const int first_owner = 0, last_owner = first_k < last_k ? 32 : -1;
#pragma unroll 1
  for (int e = threadIdx.x; e < 64512; e += 256) {
    const int column = e % 24, k = e / 24;
    const int gate = k / 672, from = k % 672, unit = unit_first + column;
    float value = 0.0f;
    if (gate < 4 && from < 650 && column < 20 && unit < 650) {
      const float in3 = tgc_load(p.in3, gate * 422500 + from * 650 + unit);
      value = in3;
    }
    weights[column * 2688 + k] = tgc_to_storage<tgc_bfloat16>(value);
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
  __syncthreads();
  float* const own_stage = staged + warp * 384;
  // Four lanes load 64 bytes of a row, 16 each: k of a lane and of an instruction are in an order of
  // their own, that of weights too.
  unsigned fragment[11][2][3][2];
#pragma unroll
  for (int chunk = 0; chunk < 11; chunk++)
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
      for (int j = 0; j < 3; j++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
          const int k = first_k + chunk * 32 + column_lane * 8 + half * 4 + r * 2;
          fragment[chunk][half][j][r] = 0;
          if (k < 2688)
            fragment[chunk][half][j][r] = *reinterpret_cast<const unsigned*>(
                weights + (j * 8 + row_lane) * 2688 + k);
        }
  // The sums of a tile over this warp's states, to its own shared memory.
  auto multiply = [&](const tgc_bfloat16* source, int row_first, int row_end) {
    float sum[1][3][4] = {};
    tgc_vector<unsigned, 4> states[11][1][2];
#pragma unroll
    for (int c = 0; c < 11; c++)
#pragma unroll
      for (int below = 0; below < 2; below++) {
        // Behind the last row or k a valid one, whose sums nobody reads or whose weights are zero.
        const int row = row_first + below * 8 + row_lane;
        const int b = row < row_end ? row : row_end - 1;
        const int start = first_k + c * 32, k = start < last_k ? start : 0;
        states[c][0][below] = *reinterpret_cast<const tgc_vector<unsigned, 4>*>(
            tgc_address(source, b * 2688 + k + column_lane * 8, 8));
      }
#pragma unroll
    for (int c = 0; c < 11 && c < 11; c++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const tgc_vector<unsigned, 4>&upper = states[c][0][0], &lower = states[c][0][1];
        const unsigned a[4] = {upper.at[half * 2], lower.at[half * 2], upper.at[half * 2 + 1],
                               lower.at[half * 2 + 1]};
#pragma unroll
        for (int j = 0; j < 3; j++)
          tgc_mma_bf16(sum[0][j], a, fragment[c][half][j]);
      }
#pragma unroll
    for (int j = 0; j < 3; j++)
#pragma unroll
      for (int q = 0; q < 4; q++)
        own_stage[(q / 2 * 8 + row_lane) * 24 + j * 8 + column_lane * 2 + q % 2] =
            sum[0][j][q];
    __syncthreads();
  };
  auto total = [&](int row, int column) {
    float value = 0.0f;
#pragma unroll
    for (int w = 0; w < 8; w++) value += staged[w * 384 + row * 24 + column];
    return value;
  };
  const int row_first = part * 16;
  const int part_end = part * 16 + 16 < 64 ? part * 16 + 16 : 64;
  const int row_end = row_first + 16 < part_end ? row_first + 16 : part_end;
  const int before = 0;
#pragma unroll
  for (int pair = 0; pair < 2; pair++) {
    const int e = pair * 256 + threadIdx.x, row = e / 20, own = e % 20;
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
        const int e = pair * 256 + threadIdx.x, row = e / 20, own = e % 20;
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
      multiply(exchange + (step + 1) % 2 * 172032, row_first, row_end);
    }
    if (step < 35) {
      tgc_bfloat16* const next = exchange + step % 2 * 172032;
      float made[2][4];
#pragma unroll
      for (int pair = 0; pair < 2; pair++) {
        const int e = pair * 256 + threadIdx.x, row = e / 20, own = e % 20;
        const int b = row_first + row, unit = unit_first + own;
        if (b < row_end && unit < 650) {
          const float i = ahead[pair][2], f = ahead[pair][3], g = ahead[pair][4], o = ahead[pair][5];
          const float shown = tgc_tanh(ahead[pair][6]);
          const float by_state = ahead[pair][0] + (step > 0 ? total(row, own) : 0.0f);
          const float by_memory = own_states[e] + ahead[pair][1] + by_state * o * (1.0f - shown * shown);
          own_states[e] = by_memory * f;
          const float by_gate[4] = {
              by_memory * g * i * (1.0f - i), by_memory * ahead[pair][7] * f * (1.0f - f),
              by_memory * i * (1.0f - g * g), by_state * shown * o * (1.0f - o)};
#pragma unroll
          for (int g = 0; g < 4; g++)
            tgc_store(next, b * 2688 + g * 672 + unit, tgc_cast<tgc_bfloat16>(by_gate[g]));
          made[pair][0] = by_gate[0];
          made[pair][1] = by_gate[1];
          made[pair][2] = by_gate[2];
          made[pair][3] = by_gate[3];
        }
      }
      publish(flag_first + block, before + step + 1);
#pragma unroll
      for (int pair = 0; pair < 2; pair++) {
        const int e = pair * 256 + threadIdx.x, row = e / 20, own = e % 20;
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
