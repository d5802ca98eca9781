// recurrence, 35 steps of 64 sequences in 2 parts, 650 units, 10 a block, 7571200000 FLOPs: lstm output output
//   output.
// Stores output (35, 64, 650) float32; output (35, 64, 2600) float32; output (35, 64, 650) float32.
// Grid 130 x 256 threads, 65000000 bytes moved at least.
TGC_STAGE(recurrence_lstm_63e7ea5879,
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
  const int first_k = warp * 84;
  const int last_k = first_k + 84 < 650 ? first_k + 84 : 650;
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
    weights[(k / 4 * 40 + column) * 4 + k % 4] = tgc_to_storage<float>(value);
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
  float* const own_stage = staged + warp * 1408;
  const int half = lane / 16, own_row = lane % 16 / 4;
  const int own_column = lane % 4;
  // The sums of a tile over this warp's states, to its own shared memory.
  auto multiply = [&](const float* source, int row_first, int row_end) {
    const int first_quad = first_k / 4, last_quad = (last_k + 3) / 4;
    auto fetch = [&](int chunk) {
      float* const slot = own_stage + chunk % 2 * 640;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int row = i * 8 + row_lane, quad = first_quad + chunk * 4 + column_lane;
        const bool inside = row_first + row < row_end && quad < last_quad;
        const float* const from = source + (inside ? (row_first + row) * 652 + quad * 4 : 0);
        tgc_copy_async16(slot + row * 20 + column_lane * 4, from, inside);
      }
      tgc_copy_commit();
    };
    float sum[8][10] = {};
    fetch(0);
#pragma unroll 1
    for (int chunk = 0; chunk < 6; chunk++) {
      fetch(chunk + 2 - 1);
      tgc_copy_wait<2 - 1>();
      __syncwarp();
      const float* const slot = own_stage + chunk % 2 * 640;
      const int first = first_quad + chunk * 4;
#pragma unroll 1
      for (int start = 0; start < 4 && first + start < last_quad; start += 2) {
        const int q = start + half;  // behind the last quad states are zero
        tgc_vector<float, 4> w[10];
#pragma unroll
        for (int j = 0; j < 10; j++)
          w[j] = *reinterpret_cast<const tgc_vector<float, 4>*>(
              weights + ((first + q) * 40 + j * 4 + own_column) * 4);
#pragma unroll
        for (int i = 0; i < 8; i++) {
          const tgc_vector<float, 4> x = *reinterpret_cast<const tgc_vector<float, 4>*>(
              slot + (i * 4 + own_row) * 20 + q * 4);
#pragma unroll
          for (int j = 0; j < 10; j++)
#pragma unroll
            for (int v = 0; v < 4; v++) sum[i][j] = tgc_fma(x.at[v], w[j].at[v], sum[i][j]);
        }
      }
      __syncwarp();
    }
    tgc_copy_wait<0>();
    __syncwarp();
    // Each half of the lanes gives the other one half of its rows.
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
      for (int j = 0; j < 10; j++) {
        const float sent = half ? sum[i][j] : sum[i + 8 / 2][j];
        const float own_sum = half ? sum[i + 8 / 2][j] : sum[i][j];
        const int row = (i + half * 4) * 4 + own_row;
        own_stage[row * 44 + j * 4 + own_column] =
            own_sum + __shfl_xor_sync(0xffffffffu, sent, 16);
      }
    __syncthreads();
  };
  auto total = [&](int row, int column) {
    float value = 0.0f;
#pragma unroll
    for (int w = 0; w < 8; w++) value += staged[w * 1408 + row * 44 + column];
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
      tgc_store(exchange, b * 652 + unit, 0.0f);
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
    multiply(exchange + step % 2 * 41728, row_first, row_end);
    float* const next = exchange + (step + 1) % 2 * 41728;
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
        tgc_store(next, b * 652 + unit, tgc_cast<float>(state));
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
TGC_STAGE(recurrence_lstm_backward_a957d5aacb,
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
  float* const own_states = reinterpret_cast<float*>(weights + 13120);
  float* const staged = own_states + 320;
  unsigned long long* const flags = p.words0;
  float* const exchange = reinterpret_cast<float*>(flags + 264);
  const int flag_first = part * 132;
  const int first_k = warp * 84;
  const int last_k = first_k + 84 < 650 ? first_k + 84 : 650;
  const int first_owner = first_k / 5, last_owner = (last_k - 1) / 5;
  const int gate = block % 4, cluster = block / 4;
  float* const sums = reinterpret_cast<float*>(exchange + 2 * 166912);
  // A unit's gradient by the state before, of all its gates.
  auto gates_sum = [&](int b, int own) {
    float value = 0.0f;
#pragma unroll
    for (int g = 0; g < 4; g++)
      value += tgc_load(sums, ((cluster * 4 + g) * 64 + b) * 20 + gate * 5 + own);
    return value;
  };
#pragma unroll 1
  for (int e = threadIdx.x; e < 13120; e += 256) {
    const int column = e % 20, k = e / 20;
    const int unit = cluster * 20 + column;
    float value = 0.0f;
    if (column < 20 && unit < 650 && k < 650) {
      const float in3 = tgc_load(p.in3, gate * 422500 + k * 650 + unit);
      value = in3;
    }
    weights[(k / 4 * 20 + column) * 4 + k % 4] = tgc_to_storage<float>(value);
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
  float* const own_stage = staged + warp * 2560;
  const int half = lane / 16, own_row = lane % 16 / 2;
  const int own_column = lane % 2;
  // The sums of a tile over this warp's states, to its own shared memory.
  auto multiply = [&](const float* source, int row_first, int row_end) {
    const int first_quad = first_k / 4, last_quad = (last_k + 3) / 4;
    auto fetch = [&](int chunk) {
      float* const slot = own_stage + chunk % 2 * 1280;
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const int row = i * 8 + row_lane, quad = first_quad + chunk * 4 + column_lane;
        const bool inside = row_first + row < row_end && quad < last_quad;
        const float* const from = source + (inside ? (row_first + row) * 652 + quad * 4 : 0);
        tgc_copy_async16(slot + row * 20 + column_lane * 4, from, inside);
      }
      tgc_copy_commit();
    };
    float sum[8][10] = {};
    fetch(0);
#pragma unroll 1
    for (int chunk = 0; chunk < 6; chunk++) {
      fetch(chunk + 2 - 1);
      tgc_copy_wait<2 - 1>();
      __syncwarp();
      const float* const slot = own_stage + chunk % 2 * 1280;
      const int first = first_quad + chunk * 4;
#pragma unroll 1
      for (int start = 0; start < 4 && first + start < last_quad; start += 2) {
        const int q = start + half;  // behind the last quad states are zero
        tgc_vector<float, 4> w[10];
#pragma unroll
        for (int j = 0; j < 10; j++)
          w[j] = *reinterpret_cast<const tgc_vector<float, 4>*>(
              weights + ((first + q) * 20 + j * 2 + own_column) * 4);
#pragma unroll
        for (int i = 0; i < 8; i++) {
          const tgc_vector<float, 4> x = *reinterpret_cast<const tgc_vector<float, 4>*>(
              slot + (i * 8 + own_row) * 20 + q * 4);
#pragma unroll
          for (int j = 0; j < 10; j++)
#pragma unroll
            for (int v = 0; v < 4; v++) sum[i][j] = tgc_fma(x.at[v], w[j].at[v], sum[i][j]);
        }
      }
      __syncwarp();
    }
    tgc_copy_wait<0>();
    __syncwarp();
    // Each half of the lanes gives the other one half of its rows.
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
      for (int j = 0; j < 10; j++) {
        const float sent = half ? sum[i][j] : sum[i + 8 / 2][j];
        const float own_sum = half ? sum[i + 8 / 2][j] : sum[i][j];
        const int row = (i + half * 4) * 8 + own_row;
        own_stage[row * 20 + j * 2 + own_column] =
            own_sum + __shfl_xor_sync(0xffffffffu, sent, 16);
      }
    __syncthreads();
  };
  auto total = [&](int row, int column) {
    float value = 0.0f;
#pragma unroll
    for (int w = 0; w < 8; w++) value += staged[w * 2560 + row * 20 + column];
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
      multiply(exchange + (step + 1) % 2 * 166912 + gate * 41728, row_first, row_end);
#pragma unroll 1
      for (int e = threadIdx.x; e < 1280; e += 256) {
        const int row = e / 20, column = e % 20, b = row_first + row;
        if (b < row_end)
          tgc_store(sums, ((cluster * 4 + gate) * 64 + b) * 20 + column, total(row, column));
      }
      publish(132 + flag_first + block, before + step);
      if (lane < 4)
        tgc_grid_flag_await(flags, 132 + flag_first + cluster * 4 + lane,
                            seen + before + step);
      __syncwarp();
    }
    if (step < 35) {
      float* const next = exchange + step % 2 * 166912;
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
            tgc_store(next, g * 41728 + b * 652 + unit, tgc_cast<float>(by_gate[g]));
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
