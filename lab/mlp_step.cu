// One training step of a 784-128-10 perceptron (batch 64, ReLU, cross-entropy with loss mean, SGD
// with momentum, biases), float32, as three kernels: what the code generator should emit for it.
// 5.6 us a step on an H200 (32 steps a graph; 6.9 us as a graph of one), 7.4 us with plain edges.
//
//   kernel      grid x block  reads             writes
//   mlp_hidden  128 x 256     x, w1: 600 KB     partials[s] = x[:, s] @ w1[:, s].T for 4 ranges s
//                                               of K: 131 KB
//   mlp_head     64 x 128     partials, w2:     hidden, d_hidden, d_logits, row_loss: one row of
//                             136 KB            the batch a block, all of it in registers: 68 KB
//   mlp_update  124 x 256     x, gradients,     w1, b1, w2, b2, their velocities, loss: four stages
//                             parameters: 1 MB  packed into one launch: 0.8 MB
//
// mlp_bias_relu, mlp_loss and mlp_back are mlp_head cut into three (64 x 128, 64 x 32, 64 x 128),
// as a scheduler without that fusion would launch it: five kernels, 7.0 us.
//
// TGC_HIDDEN_M, _N and _SPLIT choose the tile of mlp_hidden.

#ifndef TGC_HIDDEN_M
#define TGC_HIDDEN_M 16
#define TGC_HIDDEN_N 16
#define TGC_HIDDEN_SPLIT 4
#endif

constexpr int BATCH = 64, INPUTS = 784, HIDDEN = 128, CLASSES = 10, SPLIT = TGC_HIDDEN_SPLIT;

// ---- x @ w1.T, split over K ---------------------------------------------------------------------
struct mlp_hidden_params {
  const float* x;
  const float* w1;
  float* partials;
};
typedef contract_rows<TGC_HIDDEN_M, TGC_HIDDEN_N, INPUTS / SPLIT, 256> hidden_tile;

__device__ void mlp_hidden_stage(int virtual_block, const mlp_hidden_params& p, char* smem) {
  typedef hidden_tile T;
  constexpr int TM = TGC_HIDDEN_M, TN = TGC_HIDDEN_N, KC = INPUTS / SPLIT;
  constexpr int TILES_M = BATCH / TM, TILES_N = HIDDEN / TN;
  int m = virtual_block % TILES_M * TM, n = virtual_block / TILES_M % TILES_N * TN;
  int split = virtual_block / (TILES_M * TILES_N);
  float* a = reinterpret_cast<float*>(smem);
  float* b = a + TM * T::PITCH;
  tile_strip<TM, KC, 256> strip_x;
  tile_strip<TN, KC, 256> strip_w;
  edge_early();
  strip_x.fetch(p.x + m * INPUTS + split * KC, INPUTS);
  edge_late();  // the step before has just written w1
  strip_w.fetch(p.w1 + n * INPUTS + split * KC, INPUTS);
  strip_x.put<T::PITCH>(a);
  strip_w.put<T::PITCH>(b);
  __syncthreads();
  edge_loaded();
  T::multiply(a, b, a);
#pragma unroll
  for (int e = threadIdx.x; e < T::OUTPUTS; e += 256)
    tgc_store(p.partials, (split * BATCH + m + T::row_of(e)) * HIDDEN + n + T::column_of(e),
              T::output(a, e));
}
TGC_KERNEL(mlp_hidden, 256)

// ---- everything between the two large contractions, one row of the batch a block ----------------
struct mlp_head_params {
  const float* partials;
  const float* b1;
  const float* w2;
  const float* b2;
  const long long* labels;
  float* hidden;
  float* d_hidden;
  float* d_logits;
  float* row_loss;
  unsigned long long* error;
};

__device__ void mlp_head_stage(int virtual_block, const mlp_head_params& p, char* smem) {
  int row = virtual_block, j = threadIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float* slots = reinterpret_cast<float*>(smem);  // [4 warps][16]
  float weight[CLASSES], bias[CLASSES];
  edge_early();
#pragma unroll
  for (int c = 0; c < CLASSES; c++) {
    weight[c] = tgc_load(p.w2, c * HIDDEN + j);
    bias[c] = tgc_load(p.b2, c);
  }
  float hidden = tgc_load(p.b1, j);
  long long label = tgc_check_index(tgc_load(p.labels, row), CLASSES, p.error, 0);
  edge_late();
  float part[SPLIT];
#pragma unroll
  for (int s = 0; s < SPLIT; s++) part[s] = tgc_load(p.partials, (s * BATCH + row) * HIDDEN + j);
#pragma unroll
  for (int s = 0; s < SPLIT; s++) hidden += part[s];
  edge_loaded();
  hidden = fmaxf(hidden, 0.0f);
  tgc_store(p.hidden, row * HIDDEN + j, hidden);

  float product[16];
#pragma unroll
  for (int c = 0; c < 16; c++)
    product[c] = c < CLASSES ? hidden * weight[c < CLASSES ? c : 0] : 0.0f;
  float sum = warp_sum_many<16>(product);
  if (lane % 2 == 0) slots[warp * 16 + lane / 2] = sum;
  __syncthreads();
  float logit[CLASSES], top = -INFINITY;
#pragma unroll
  for (int c = 0; c < CLASSES; c++) {
    logit[c] = bias[c] + ((slots[c] + slots[16 + c]) + (slots[32 + c] + slots[48 + c]));
    top = fmaxf(top, logit[c]);
  }
  float scale = 0.0f, at_label = 0.0f;
#pragma unroll
  for (int c = 0; c < CLASSES; c++) {
    float centred = logit[c] - top;
    if (c == label) at_label = centred;
    logit[c] = expf(centred);
    scale += logit[c];
  }
  if (j == 0) tgc_store(p.row_loss, row, logf(scale) - at_label);
  float inverse = 1.0f / (scale * BATCH), back = 0.0f;
#pragma unroll
  for (int c = 0; c < CLASSES; c++) {
    float slope = logit[c] * inverse - (c == label ? 1.0f / BATCH : 0.0f);
    if (j == c) tgc_store(p.d_logits, row * CLASSES + c, slope);
    back += slope * weight[c];
  }
  tgc_store(p.d_hidden, row * HIDDEN + j, hidden > 0.0f ? back : 0.0f);
}
TGC_KERNEL(mlp_head, 128)

// ---- the same cut into three kernels ------------------------------------------------------------
struct mlp_bias_relu_params {
  const float* partials;
  const float* b1;
  float* hidden;
};
__device__ void mlp_bias_relu_stage(int virtual_block, const mlp_bias_relu_params& p, char* smem) {
  int i = virtual_block * 128 + threadIdx.x;
  edge_early();
  float hidden = tgc_load(p.b1, i % HIDDEN);
  edge_late();
  float part[SPLIT];
#pragma unroll
  for (int s = 0; s < SPLIT; s++) part[s] = tgc_load(p.partials, s * BATCH * HIDDEN + i);
#pragma unroll
  for (int s = 0; s < SPLIT; s++) hidden += part[s];
  tgc_store(p.hidden, i, fmaxf(hidden, 0.0f));
}
TGC_KERNEL(mlp_bias_relu, 128)

struct mlp_loss_params {
  const float* hidden;
  const float* w2;
  const float* b2;
  const long long* labels;
  float* d_logits;
  float* row_loss;
  unsigned long long* error;
};
__device__ void mlp_loss_stage(int virtual_block, const mlp_loss_params& p, char* smem) {
  int row = virtual_block, lane = threadIdx.x;
  edge_early();
  float product[16];
  float_4 weight[CLASSES];
#pragma unroll
  for (int c = 0; c < CLASSES; c++) weight[c] = tgc_load_vector<4>(p.w2, c * HIDDEN + lane * 4);
  float bias = lane / 2 < CLASSES ? tgc_load(p.b2, lane / 2) : 0.0f;
  long long label = tgc_check_index(tgc_load(p.labels, row), CLASSES, p.error, 0);
  edge_late();
  float_4 hidden = tgc_load_vector<4>(p.hidden, row * HIDDEN + lane * 4);
#pragma unroll
  for (int c = 0; c < 16; c++) {
    product[c] = 0.0f;
    if (c < CLASSES)
#pragma unroll
      for (int i = 0; i < 4; i++) product[c] += hidden.at[i] * weight[c < CLASSES ? c : 0].at[i];
  }
  int c = lane / 2;  // from here on two lanes carry one class
  bool mine = c < CLASSES;
  float logit = warp_sum_many<16>(product) + bias;
  float top = tgc_warp_reduce(mine ? logit : -INFINITY, tgc_max_op());
  float power = mine ? expf(logit - top) : 0.0f;
  float scale = 0.5f * tgc_warp_reduce(power, tgc_sum_op());
  if (mine && lane % 2 == 0)
    tgc_store(p.d_logits, row * CLASSES + c,
              power / (scale * BATCH) - (c == label ? 1.0f / BATCH : 0.0f));
  if (c == label && lane % 2 == 0) tgc_store(p.row_loss, row, logf(scale) - (logit - top));
}
TGC_KERNEL(mlp_loss, 32)

struct mlp_back_params {
  const float* d_logits;
  const float* w2;
  const float* hidden;
  float* d_hidden;
};
__device__ void mlp_back_stage(int virtual_block, const mlp_back_params& p, char* smem) {
  int row = virtual_block, j = threadIdx.x;
  float weight[CLASSES];
  edge_early();
#pragma unroll
  for (int c = 0; c < CLASSES; c++) weight[c] = tgc_load(p.w2, c * HIDDEN + j);
  float hidden = tgc_load(p.hidden, row * HIDDEN + j);
  edge_late();
  float back = 0.0f;
#pragma unroll
  for (int c = 0; c < CLASSES; c++) back += tgc_load(p.d_logits, row * CLASSES + c) * weight[c];
  tgc_store(p.d_hidden, row * HIDDEN + j, hidden > 0.0f ? back : 0.0f);
}
TGC_KERNEL(mlp_back, 128)

// ---- weight gradients and updates, packed -------------------------------------------------------
struct mlp_update_params {
  const float* x;
  const float* hidden;
  const float* d_hidden;
  const float* d_logits;
  const float* row_loss;
  float* w1;
  float* w1_velocity;
  float* b1;
  float* b1_velocity;
  float* w2;
  float* w2_velocity;
  float* b2;
  float* b2_velocity;
  float* loss;
  const unsigned long long* error;
  double rate;
  double momentum;
};

TGC_DEVICE void momentum_step(float* parameter, float* velocity, long long i, float old_parameter,
                              float old_velocity, float gradient, const mlp_update_params& p) {
  float v = (float)p.momentum * old_velocity + gradient;
  tgc_store(velocity, i, v);
  tgc_store(parameter, i, old_parameter - (float)p.rate * v);
}

// dw1 = d_hidden.T @ x in tiles of 16 x 56, and its update.
typedef contract_columns<16, 56, BATCH, 256> update_tile;
__device__ void update_w1_stage(int virtual_block, const mlp_update_params& p, char* smem) {
  typedef update_tile T;
  int m = virtual_block % 8 * 16, n = virtual_block / 8 * 56;
  float* a = reinterpret_cast<float*>(smem);
  float* b = a + 16 * BATCH;
  tile_strip<BATCH, 16, 256> strip_d;
  tile_strip<BATCH, 56, 256> strip_x;
  int e = threadIdx.x;
  long long at = (m + T::row_of(e)) * INPUTS + n + T::column_of(e);
  float_4 weight, velocity;
  edge_early();
  strip_x.fetch(p.x + n, INPUTS);
  if (e < T::OUTPUTS) {
    weight = tgc_load_vector<4>(p.w1, at);
    velocity = tgc_load_vector<4>(p.w1_velocity, at);
  }
  strip_x.put<56>(b);
  edge_late();
  strip_d.fetch(p.d_hidden + m, HIDDEN);
  bool keep = tgc_load(p.error, 0) == 0;
  strip_d.put<16>(a);
  __syncthreads();
  edge_loaded();
  T::multiply(a, b, reinterpret_cast<float_4*>(a));
  if (e < T::OUTPUTS && keep) {
    float_4 gradient = T::output(reinterpret_cast<float_4*>(a), e);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      velocity.at[i] = (float)p.momentum * velocity.at[i] + gradient.at[i];
      weight.at[i] -= (float)p.rate * velocity.at[i];
    }
    tgc_store_vector(p.w1_velocity, at, velocity);
    tgc_store_vector(p.w1, at, weight);
  }
}

// Class c < 10: dw2[c] = d_logits[:, c] @ hidden. c == 10: db1 = the column sums of d_hidden.
__device__ void update_w2_b1_stage(int virtual_block, const mlp_update_params& p, char* smem) {
  int c = virtual_block, j = threadIdx.x % HIDDEN, half = threadIdx.x / HIDDEN;
  bool weights = c < CLASSES;
  float* slots = reinterpret_cast<float*>(smem);
  float* parameter = weights ? p.w2 + c * HIDDEN : p.b1;
  float* velocity = weights ? p.w2_velocity + c * HIDDEN : p.b1_velocity;
  const float* column = weights ? p.hidden : p.d_hidden;
  float value[32], factor[32], old_parameter, old_velocity, gradient = 0.0f;
  edge_early();
  old_parameter = tgc_load(parameter, j);
  old_velocity = tgc_load(velocity, j);
  edge_late();
  bool keep = tgc_load(p.error, 0) == 0;
#pragma unroll
  for (int k = 0; k < 32; k++) {
    int row = half * 32 + k;
    value[k] = tgc_load(column, row * HIDDEN + j);
    factor[k] = weights ? tgc_load(p.d_logits, row * CLASSES + c) : 1.0f;
  }
#pragma unroll
  for (int k = 0; k < 32; k++) gradient += value[k] * factor[k];
  edge_loaded();
  if (half == 1) slots[j] = gradient;
  __syncthreads();
  if (half == 0 && keep)
    momentum_step(parameter, velocity, j, old_parameter, old_velocity, gradient + slots[j], p);
}

// Warp c < 8 and its turn: db2 = the column sums of d_logits; the last turn is the loss mean.
__device__ void update_b2_loss_stage(const mlp_update_params& p) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  edge_early();
  edge_late();
  bool keep = tgc_load(p.error, 0) == 0;
  for (int c = warp; c <= CLASSES; c += 8) {
    const float* column = c < CLASSES ? p.d_logits + c : p.row_loss;
    int stride = c < CLASSES ? CLASSES : 1;
    float sum = tgc_warp_reduce(
        tgc_load(column, lane * stride) + tgc_load(column, (lane + 32) * stride), tgc_sum_op());
    if (lane == 0 && c == CLASSES) tgc_store(p.loss, 0, sum / BATCH);
    if (lane == 0 && c < CLASSES && keep)
      momentum_step(p.b2, p.b2_velocity, c, tgc_load(p.b2, c), tgc_load(p.b2_velocity, c), sum, p);
  }
}

__device__ void mlp_update_stage(int virtual_block, const mlp_update_params& p, char* smem) {
  if (virtual_block < 112)
    update_w1_stage(virtual_block, p, smem);
  else if (virtual_block < 123)
    update_w2_b1_stage(virtual_block - 112, p, smem);
  else
    update_b2_loss_stage(p);
}
TGC_KERNEL(mlp_update, 256)
