// recurrence: all steps of a recurrent layer, or of its gradient, in one kernel. All blocks must be
// co-resident, because they wait for each other: one block of 256 threads on a multiprocessor.
//
// A block owns some hidden units. It holds the weights of their gates in shared memory for all steps,
// and makes their states, pointwise, from sums that never leave it:
//
//   warp: poll the flags of the blocks that make its k -> copy states (a ring, 16-byte copies)
//         -> products of its k in registers -> shared memory
//   block: sum over the 8 warps, in order -> gates, states -> the exchange -> flag -> memory
//
// States go from block to block through the exchange, in two buffers that take turns: a block
// publishes a step only when all its warps have seen the step before it of every block, so that
// nobody still reads what it overwrites. A flag counts the steps of all launches; nothing is cleared
// between them. By matrix units states go from the exchange to registers, where those of 16 bits
// meet their weights, too.
//
// Of a gradient the exchange has the gradients of all gates, G times as many values. So G blocks
// make the sums of each other's units: each those of one gate, which it reads alone, for the units
// of all G; then each adds the G sums of its own units. That is a second wait, for G blocks. By
// matrix units a block may instead sum over all gates (`whole`), of fewer sequences.
//
// Sequences may be divided into parts, of which each has blocks of its own.
//
// Versions, LSTM of 650 units, 35 steps of 64 sequences on an H200, us forward and backward
// (docs/measurements.md):
//                                                                     float32    bfloat16
//   1. two fences a step, a ring of 2, 8 x 5 or 4 x 10 sums a lane    402  556   203  303
//   2. one fence; states of 3 chunks in flight at one time, by mma               175  259
//   3. lanes take halves of k: 8 x 10 sums, fewer loads for each      404  489
//   4. split products of float32 on matrix units: 0.85, 0.85 of the third's time in one run
// cuDNN's layer less the products of inputs and weights takes 667 and 852, 748 and 1226.
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
const int last_k = first_k + @warp_elements@ < @k@ ? first_k + @warp_elements@ : @k@;
const int first_owner = @first_owner@, last_owner = @last_owner@;
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
  @check@
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
    multiply(exchange + (step + 1) % 2 * @buffer@@own_gate@, row_first, row_end);
    @gather@
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
//@ gather
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
//@ weights
const int k = e % @weight_k@, column = e / @weight_k@;
const int gate = column / @units@, unit = unit_first + column % @units@;
//@ weights_backward
const int column = e % @columns@, k = e / @columns@;
const int unit = cluster * @cluster_units@ + column;
//@ weights_whole
const int column = e % @columns@, k = e / @columns@;
const int gate = k / @gate_row@, from = k % @gate_row@, unit = unit_first + column;
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
const float by_state = ahead[pair][0] + (step > 0 ? @gates_sum@ : 0.0f);
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
const float by_state = ahead[pair][0] + own_states[e] + (step > 0 ? @gates_sum@ : 0.0f);
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
const float by_state = ahead[pair][0] + (step > 0 ? @gates_sum@ : 0.0f);
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
  tgc_store(next, @gate_at@ + unit, tgc_cast<@storage@>(by_gate[g]));
//@ multiply
float* const own_stage = staged + warp * @staged@;
const int half = lane / @half_lanes@, own_row = lane % @half_lanes@ / @column_lanes@;
const int own_column = lane % @column_lanes@;
// The sums of a tile over this warp's states, to its own shared memory.
auto multiply = [&](const float* source, int row_first, int row_end) {
  const int first_quad = first_k / 4, last_quad = (last_k + 3) / 4;
  auto fetch = [&](int chunk) {
    float* const slot = own_stage + chunk % @slots@ * @slot@;
#pragma unroll
    for (int i = 0; i < @groups@; i++) {
      const int row = i * 8 + row_lane, quad = first_quad + chunk * 4 + column_lane;
      const bool inside = row_first + row < row_end && quad < last_quad;
      const float* const from = source + (inside ? (row_first + row) * @row_elements@ + quad * 4 : 0);
      tgc_copy_async16(slot + row * @copy_pitch@ + column_lane * 4, from, inside);
    }
    tgc_copy_commit();
  };
  float sum[@lane_rows@][@lane_columns@] = {};
#pragma unroll
  for (int chunk = 0; chunk < @slots@ - 1; chunk++) fetch(chunk);
#pragma unroll 1
  for (int chunk = 0; chunk < @chunks@; chunk++) {
    fetch(chunk + @slots@ - 1);
    tgc_copy_wait<@slots@ - 1>();
    __syncwarp();
    const float* const slot = own_stage + chunk % @slots@ * @slot@;
    const int first = first_quad + chunk * 4;
#pragma unroll 1
    for (int start = 0; start < 4 && first + start < last_quad; start += @halves@) {
      const int q = start + half;  // behind the last quad states are zero
      tgc_vector<float, 4> w[@lane_columns@];
#pragma unroll
      for (int j = 0; j < @lane_columns@; j++)
        w[j] = *reinterpret_cast<const tgc_vector<float, 4>*>(
            weights + ((first + q) * @columns@ + j * @column_lanes@ + own_column) * 4);
#pragma unroll
      for (int i = 0; i < @lane_rows@; i++) {
        const tgc_vector<float, 4> x = *reinterpret_cast<const tgc_vector<float, 4>*>(
            slot + (i * @row_lanes@ + own_row) * @copy_pitch@ + q * 4);
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
  @store_sums@
  __syncthreads();
};
//@ store_sums
#pragma unroll
for (int i = 0; i < @lane_rows@; i++)
#pragma unroll
  for (int j = 0; j < @lane_columns@; j++)
    own_stage[(i * @row_lanes@ + own_row) * @sum_pitch@ + j * @column_lanes@ + own_column] = sum[i][j];
//@ store_sums_of_halves
// Each half of the lanes gives the other one half of its rows.
#pragma unroll
for (int i = 0; i < @lane_rows@ / 2; i++)
#pragma unroll
  for (int j = 0; j < @lane_columns@; j++) {
    const float sent = half ? sum[i][j] : sum[i + @lane_rows@ / 2][j];
    const float own_sum = half ? sum[i + @lane_rows@ / 2][j] : sum[i][j];
    const int row = (i + half * (@lane_rows@ / 2)) * @row_lanes@ + own_row;
    own_stage[row * @sum_pitch@ + j * @column_lanes@ + own_column] =
        own_sum + __shfl_xor_sync(0xffffffffu, sent, 16);
  }
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
  for (int first = 0; first < @chunks@; first += @together@) {
    tgc_vector<unsigned, 4> states[@together@][@groups@][2];
#pragma unroll
    for (int c = 0; c < @together@; c++)
#pragma unroll
      for (int i = 0; i < @groups@; i++)
#pragma unroll
        for (int below = 0; below < 2; below++) {
          // Behind the last row or k a valid one, whose sums nobody reads or whose weights are zero.
          const int row = row_first + i * 16 + below * 8 + row_lane;
          const int b = row < row_end ? row : row_end - 1;
          const int start = first_k + (first + c) * 32, k = start < last_k ? start : 0;
          states[c][i][below] = *reinterpret_cast<const tgc_vector<unsigned, 4>*>(
              tgc_address(source, b * @row_elements@ + k + column_lane * 8, 8));
        }
#pragma unroll
    for (int c = 0; c < @together@ && first + c < @chunks@; c++)
#pragma unroll
      for (int half = 0; half < 2; half++)
#pragma unroll
        for (int i = 0; i < @groups@; i++) {
          const tgc_vector<unsigned, 4>&upper = states[c][i][0], &lower = states[c][i][1];
          const unsigned a[4] = {upper.at[half * 2], lower.at[half * 2], upper.at[half * 2 + 1],
                                 lower.at[half * 2 + 1]};
#pragma unroll
          for (int j = 0; j < @tiles_of_columns@; j++)
            @multiply_tiles@(sum[i][j], a, fragment[first + c][half][j]);
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
//@ multiply_tf32
float* const own_stage = staged + warp * @staged@;
// The sums of a tile over this warp's states, to its own shared memory. Four lanes load 64 bytes of
// a row, 16 each; the first and the third number of a lane are its k of two instructions, the others
// those of the lower halves.
@multiplied@
auto multiply = [&](const float* source, int row_first, int row_end) {
  @set_multiplied@
  float sum[@groups@][@tiles_of_columns@][4] = {};
@unroll_turns@
  for (int first = 0; first < @chunks@; first += @together@) {
    tgc_vector<unsigned, 4> states[@together@][@groups@][2];
#pragma unroll
    for (int c = 0; c < @together@; c++)
#pragma unroll
      for (int i = 0; i < @groups@; i++)
#pragma unroll
        for (int below = 0; below < 2; below++) {
          // Behind the last row or k a valid one, whose sums nobody reads or which is left out.
          const int row = row_first + i * 16 + below * 8 + row_lane;
          const int b = row < row_end ? row : row_end - 1;
          const int start = first_k + (first + c) * 16, k = start < last_k ? start : 0;
          states[c][i][below] = *reinterpret_cast<const tgc_vector<unsigned, 4>*>(
              tgc_address(source, b * @row_elements@ + k + column_lane * 4, 4));
        }
    @begin_part@
#pragma unroll
    for (int c = 0; c < @together@ && first + c < @chunks@; c++) {
      const int k = first_k + (first + c) * 16;
      if (k < last_k) {
        tgc_vector<unsigned, 4> w[@tiles_of_columns@];
#pragma unroll
        for (int j = 0; j < @tiles_of_columns@; j++)
          w[j] = *reinterpret_cast<const tgc_vector<unsigned, 4>*>(
              weights + (j * 8 + row_lane) * @weight_k@ + k + column_lane * 4);
#pragma unroll
        for (int half = 0; half < 2; half++) {
          @products@
        }
      }
    }
    @add_part@
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
//@ begin_part
float part[@groups@][@tiles_of_columns@][4] = {};
//@ add_part
#pragma unroll
for (int i = 0; i < @groups@; i++)
#pragma unroll
  for (int j = 0; j < @tiles_of_columns@; j++)
#pragma unroll
    for (int q = 0; q < 4; q++) sum[i][j][q] += part[i][j][q];
//@ multiplied
const float* multiplied = nullptr;
//@ set_multiplied
multiplied = source + row_first * @row_elements@;
//@ check
// What is not finite is summed again in the order of k: low parts of infinities are undefined.
if (!tgc_isfinite(value)) {
  value = 0.0f;
#pragma unroll 1
  for (int k = 0; k < @k@; k++)
    value = tgc_fma(tgc_load(multiplied, row * @row_elements@ + k), weights[@weight_at@], value);
}
//@ rounded_products
unsigned b[@tiles_of_columns@][2];
#pragma unroll
for (int j = 0; j < @tiles_of_columns@; j++)
#pragma unroll
  for (int r = 0; r < 2; r++) b[j][r] = tgc_tf32(__uint_as_float(w[j].at[half * 2 + r]));
#pragma unroll
for (int i = 0; i < @groups@; i++) {
  unsigned a[4];
#pragma unroll
  for (int r = 0; r < 4; r++)
    a[r] = tgc_tf32(__uint_as_float(states[c][i][r % 2].at[half * 2 + r / 2]));
#pragma unroll
  for (int j = 0; j < @tiles_of_columns@; j++) tgc_mma_tf32(part[i][j], a, b[j]);
}
//@ split_products
unsigned b[@tiles_of_columns@][2], b_low[@tiles_of_columns@][2];
#pragma unroll
for (int j = 0; j < @tiles_of_columns@; j++)
#pragma unroll
  for (int r = 0; r < 2; r++) tgc_tf32_split_unsaturated(w[j].at[half * 2 + r], b[j][r], b_low[j][r]);
#pragma unroll
for (int i = 0; i < @groups@; i++) {
  unsigned a[4], a_low[4];
#pragma unroll
  for (int r = 0; r < 4; r++)
    tgc_tf32_split_unsaturated(states[c][i][r % 2].at[half * 2 + r / 2], a[r], a_low[r]);
#pragma unroll
  for (int j = 0; j < @tiles_of_columns@; j++) {
    float part[4] = {};  // of 8 k, small products first: the unit's accumulator truncates
    tgc_mma_tf32(part, a_low, b[j]);
    tgc_mma_tf32(part, a, b_low[j]);
    tgc_mma_tf32(part, a, b[j]);
#pragma unroll
    for (int q = 0; q < 4; q++) sum[i][j][q] += part[q];
  }
}
