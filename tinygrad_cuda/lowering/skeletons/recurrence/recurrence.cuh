// recurrence: all steps of a recurrent layer, or of its gradient, in one kernel. All blocks must be
// co-resident, because they wait for each other: one block of 256 threads on a multiprocessor.
//
// A block owns some hidden units. It holds the weights of their gates in shared memory for all steps,
// and makes their states, pointwise, from sums that never leave it:
//
//   warp: poll the flags of the blocks that make its k -> copy states (ring of 2, 16-byte copies)
//         -> products of its k in registers -> shared memory
//   block: sum over the 8 warps, in order -> gates, states -> memory, and the exchange -> flag
//
// States go from block to block through the exchange, float32, in two buffers that take turns: a
// block publishes a step only when all its warps have seen the step before it of every block, so
// that nobody still reads what it overwrites. A flag counts the steps of all launches; nothing is
// cleared between them.
//
// Of a gradient the exchange has the gradients of all gates, G times as many values. So G blocks
// make the sums of each other's units: each those of one gate, which it reads alone, for the units
// of all G; then each adds the G sums of its own units. That is a second wait, for G blocks.
//
// Sequences may be divided into parts, of which each has blocks of its own.
//@ body
const int part = virtual_block / @unit_blocks@, block = virtual_block % @unit_blocks@;
const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
const int row_lane = lane / 4, column_lane = lane % 4;
const int unit_first = block * @units@;
@weight_type@* const weights = reinterpret_cast<@weight_type@*>(smem);
float* const own_states = reinterpret_cast<float*>(weights + @weights@);
float* const staged = own_states + @own@;
unsigned long long* const flags = @exchange@;
@weight_type@* const exchange = reinterpret_cast<@weight_type@*>(flags + @flag_words@);
const int flag_first = part * @unit_blocks@;
const int first_k = warp * @warp_elements@;
const int last_k = first_k + @warp_elements@ < @hidden@ ? first_k + @warp_elements@ : @hidden@;
const int first_owner = first_k / @units@, last_owner = (last_k - 1) / @units@;
@outer@
#pragma unroll 1
for (int e = threadIdx.x; e < @weights@; e += @threads@) {
  @weight_position@
  float value = 0.0f;
  if (@weight_inside@) {
    @load_weight@
    value = @weight@;
  }
  weights[@weight_at@] = tgc_to_storage<@weight_type@>(value);
}
const unsigned long long seen = tgc_grid_flag(flags, flag_first + block);
// Waits until the blocks that make this warp's states have published so many steps of this launch.
auto await = [&](int steps) {
  if (first_k < last_k)
    for (int owner = first_owner + lane; owner <= last_owner; owner += 32)
      tgc_grid_flag_await(flags, flag_first + owner, seen + steps);
  __syncwarp();
};
auto publish = [&](int flag, int steps) {
  __syncthreads();
  if (threadIdx.x == 0) tgc_grid_flag_publish(flags, flag, seen + steps);
};
@multiply@
auto total = [&](int row, int column) {
  float value = 0.0f;
#pragma unroll
  for (int w = 0; w < @warps@; w++) value += staged[w * @staged@ + row * @sum_pitch@ + column];
  return value;
};
#pragma unroll 1
for (int tile = 0; tile < @tiles@; tile++) {
  const int row_first = part * @part_rows@ + tile * @rows@;
  const int part_end = part * @part_rows@ + @part_rows@ < @batch@ ? part * @part_rows@ + @part_rows@ : @batch@;
  const int row_end = row_first + @rows@ < part_end ? row_first + @rows@ : part_end;
  const int before = tile * @tile_steps@;
  @steps@
}
//@ pairs
@unroll@
for (int pair = 0; pair < @pairs@; pair++) {
  const int e = pair * @threads@ + threadIdx.x, row = e / @units@, own = e % @units@;
  const int b = row_first + row, unit = unit_first + own;
  if (b < row_end && unit < @hidden@) {
    @statements@
  }
}
//@ forward
@begin@
publish(flag_first + block, before + 1);
#pragma unroll 1
for (int step = 0; step < @step_count@; step++) {
  const int t = @time@;
  float ahead[@pairs@][@ahead_count@];
  @ahead@
  await(before + step + 1);
  multiply(exchange + step % 2 * @buffer@, row_first, row_end);
  @weight_type@* const next = exchange + (step + 1) % 2 * @buffer@;
  float made[@pairs@][@made_count@];  // stored when others no longer wait for it
  @apply@
  if (step + 1 < @step_count@) publish(flag_first + block, before + step + 2);
  else __syncthreads();
  @store@
}
//@ backward
@begin@
#pragma unroll 1
for (int step = 0; step < @step_count@ + @last@; step++) {
  const int t = @time@;
  float ahead[@pairs@][@ahead_count@];
  if (step < @step_count@) {
    @ahead@
  }
  if (step > 0) {
    await(before + step);
    multiply(exchange + (step + 1) % 2 * @buffer@ + gate * @gate_elements@, row_first, row_end);
#pragma unroll 1
    for (int e = threadIdx.x; e < @rows@ * @columns@; e += @threads@) {
      const int row = e / @columns@, column = e % @columns@, b = row_first + row;
      if (b < row_end)
        tgc_store(sums, ((cluster * @gates@ + gate) * @batch@ + b) * @columns@ + column, total(row, column));
    }
    publish(@second_flags@ + flag_first + block, before + step);
    if (lane < @gates@)
      tgc_grid_flag_await(flags, @second_flags@ + flag_first + cluster * @gates@ + lane,
                          seen + before + step);
    __syncwarp();
  }
  if (step < @step_count@) {
    @weight_type@* const next = exchange + step % 2 * @buffer@;
    float made[@pairs@][@made_count@];
    @apply@
    publish(flag_first + block, before + step + 1);
    @store@
  } else {
    @finish@
  }
}
//@ weights
const int k = e % @row_elements@, column = e / @row_elements@;
const int gate = column / @units@, unit = unit_first + column % @units@;
//@ weights_backward
const int column = e % @columns@, k = e / @columns@;
const int unit = cluster * @cluster_units@ + column;
//@ begin_lstm
own_states[e] = @memory@;
tgc_store(exchange, b * @row_elements@ + unit, @state@);
//@ lstm
const float i = tgc_sigmoid(ahead[pair][0] + total(row, own));
const float f = tgc_sigmoid(ahead[pair][1] + total(row, @units@ + own));
const float g = tgc_tanh(ahead[pair][2] + total(row, 2 * @units@ + own));
const float o = tgc_sigmoid(ahead[pair][3] + total(row, 3 * @units@ + own));
const float memory = f * own_states[e] + i * g;
const float state = o * tgc_tanh(memory);
own_states[e] = memory;
tgc_store(next, b * @row_elements@ + unit, tgc_cast<@storage@>(state));
//@ lstm_backward
const float i = ahead[pair][2], f = ahead[pair][3], g = ahead[pair][4], o = ahead[pair][5];
const float shown = tgc_tanh(ahead[pair][6]);
const float by_state = ahead[pair][0] + (step > 0 ? gates_sum(b, own) : 0.0f);
const float by_memory = own_states[e] + ahead[pair][1] + by_state * o * (1.0f - shown * shown);
own_states[e] = by_memory * f;
const float by_gate[4] = {
    by_memory * g * i * (1.0f - i), by_memory * ahead[pair][7] * f * (1.0f - f),
    by_memory * i * (1.0f - g * g), by_state * shown * o * (1.0f - o)};
//@ begin_gru
own_states[e] = @state@;
tgc_store(exchange, b * @row_elements@ + unit, @state@);
//@ gru
const float reset = tgc_sigmoid(ahead[pair][0] + total(row, own));
const float update = tgc_sigmoid(ahead[pair][1] + total(row, @units@ + own));
const float inner = ahead[pair][3] + total(row, 2 * @units@ + own);
const float candidate = tgc_tanh(ahead[pair][2] + reset * inner);
const float state = candidate + update * (own_states[e] - candidate);
own_states[e] = tgc_cast<@storage@>(state);
tgc_store(next, b * @row_elements@ + unit, own_states[e]);
//@ gru_backward
const float reset = ahead[pair][1], update = ahead[pair][2], candidate = ahead[pair][3];
const float by_state = ahead[pair][0] + own_states[e] + (step > 0 ? gates_sum(b, own) : 0.0f);
const float by_candidate = by_state * (1.0f - update) * (1.0f - candidate * candidate);
own_states[e] = by_state * update;
const float by_update = by_state * (ahead[pair][5] - candidate) * update * (1.0f - update);
const float by_reset = by_candidate * ahead[pair][4] * reset * (1.0f - reset);
const float by_gate[3] = {by_reset, by_update, by_candidate * reset};
//@ begin_rnn
tgc_store(exchange, b * @row_elements@ + unit, @state@);
//@ rnn
const float sum_of_both = ahead[pair][0] + total(row, own);
const float state = @function@;
tgc_store(next, b * @row_elements@ + unit, tgc_cast<@storage@>(state));
//@ rnn_backward
const float by_state = ahead[pair][0] + (step > 0 ? gates_sum(b, own) : 0.0f);
const float by_gate[1] = {@slope@};
//@ sum_of_gates
const int gate = block % @gates@, cluster = block / @gates@;
float* const sums = reinterpret_cast<float*>(exchange + 2 * @buffer@);
// A unit's gradient by the state before, of all its gates.
auto gates_sum = [&](int b, int own) {
  float value = 0.0f;
#pragma unroll
  for (int g = 0; g < @gates@; g++)
    value += tgc_load(sums, ((cluster * @gates@ + g) * @batch@ + b) * @columns@ + gate * @units@ + own);
  return value;
};
//@ exchange_gates
#pragma unroll
for (int g = 0; g < @gates@; g++)
  tgc_store(next, g * @gate_elements@ + b * @row_elements@ + unit, tgc_cast<@storage@>(by_gate[g]));
//@ multiply
float* const own_stage = staged + warp * @staged@;
// The sums of a tile over this warp's states, to its own shared memory.
auto multiply = [&](const float* source, int row_first, int row_end) {
  const int first_quad = first_k / 4, last_quad = (last_k + 3) / 4;
  auto fetch = [&](int chunk) {
    float* const slot = own_stage + chunk % 2 * @slot@;
#pragma unroll
    for (int i = 0; i < @groups@; i++) {
      const int row = i * 8 + row_lane, quad = first_quad + chunk * 4 + column_lane;
      const bool inside = row_first + row < row_end && quad < last_quad;
      const float* const from = source + (inside ? (row_first + row) * @row_elements@ + quad * 4 : 0);
      tgc_copy_async16(slot + row * @copy_pitch@ + column_lane * 4, from, inside);
    }
    tgc_copy_commit();
  };
  float sum[@groups@][@lane_columns@] = {};
  fetch(0);
#pragma unroll 1
  for (int chunk = 0; chunk < @chunks@; chunk++) {
    fetch(chunk + 1);
    tgc_copy_wait<1>();
    __syncwarp();
    const float* const slot = own_stage + chunk % 2 * @slot@;
    const int first = first_quad + chunk * 4;
#pragma unroll 1
    for (int q = 0; q < 4 && first + q < last_quad; q++) {
      tgc_vector<float, 4> w[@lane_columns@];
#pragma unroll
      for (int j = 0; j < @lane_columns@; j++)
        w[j] = *reinterpret_cast<const tgc_vector<float, 4>*>(
            weights + ((first + q) * @columns@ + j * 4 + column_lane) * 4);
#pragma unroll
      for (int i = 0; i < @groups@; i++) {
        const tgc_vector<float, 4> x = *reinterpret_cast<const tgc_vector<float, 4>*>(
            slot + (i * 8 + row_lane) * @copy_pitch@ + q * 4);
#pragma unroll
        for (int j = 0; j < @lane_columns@; j++)
#pragma unroll
          for (int v = 0; v < 4; v++) sum[i][j] = tgc_fma(x.at[v], w[j].at[v], sum[i][j]);
      }
    }
    __syncwarp();
  }
  tgc_copy_wait<0>();
  __syncwarp();
#pragma unroll
  for (int i = 0; i < @groups@; i++)
#pragma unroll
    for (int j = 0; j < @lane_columns@; j++)
      own_stage[(i * 8 + row_lane) * @sum_pitch@ + j * 4 + column_lane] = sum[i][j];
  __syncthreads();
};
//@ multiply_mma
__syncthreads();
float* const own_stage = staged + warp * @staged@;
// Four lanes load 64 bytes of a row, 16 each: k of a lane and of an instruction are in an order of
// their own, that of weights too.
unsigned fragment[@chunks@][2][@tiles_of_columns@][2];
#pragma unroll
for (int chunk = 0; chunk < @chunks@; chunk++)
#pragma unroll
  for (int half = 0; half < 2; half++)
#pragma unroll
    for (int j = 0; j < @tiles_of_columns@; j++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const int k = first_k + chunk * 32 + column_lane * 8 + half * 4 + r * 2;
        fragment[chunk][half][j][r] = 0;
        if (k < @row_elements@)
          fragment[chunk][half][j][r] = *reinterpret_cast<const unsigned*>(
              weights + (j * 8 + row_lane) * @row_elements@ + k);
      }
// The sums of a tile over this warp's states, to its own shared memory.
auto multiply = [&](const @weight_type@* source, int row_first, int row_end) {
  float sum[@groups@][@tiles_of_columns@][4] = {};
#pragma unroll
  for (int chunk = 0; chunk < @chunks@; chunk++) {
    const int k = first_k + chunk * 32 + column_lane * 8;
    if (first_k + chunk * 32 < last_k) {
      tgc_vector<unsigned, 4> states[@groups@][2];
#pragma unroll
      for (int i = 0; i < @groups@; i++)
#pragma unroll
        for (int below = 0; below < 2; below++) {
          const int row = row_first + i * 16 + below * 8 + row_lane;
          const int b = row < row_end ? row : row_end - 1;  // whose sums nobody reads
          states[i][below] = *reinterpret_cast<const tgc_vector<unsigned, 4>*>(
              tgc_address(source, b * @row_elements@ + k, 8));
        }
#pragma unroll
      for (int half = 0; half < 2; half++)
#pragma unroll
        for (int i = 0; i < @groups@; i++) {
          const tgc_vector<unsigned, 4>&upper = states[i][0], &lower = states[i][1];
          const unsigned a[4] = {upper.at[half * 2], lower.at[half * 2], upper.at[half * 2 + 1],
                                 lower.at[half * 2 + 1]};
#pragma unroll
          for (int j = 0; j < @tiles_of_columns@; j++)
            @multiply_tiles@(sum[i][j], a, fragment[chunk][half][j]);
        }
    }
  }
#pragma unroll
  for (int i = 0; i < @groups@; i++)
#pragma unroll
    for (int j = 0; j < @tiles_of_columns@; j++)
#pragma unroll
      for (int q = 0; q < 4; q++)
        own_stage[(i * 16 + q / 2 * 8 + row_lane) * @sum_pitch@ + j * 8 + column_lane * 2 + q % 2] =
            sum[i][j][q];
  __syncthreads();
};
