// ROW skeleton: softmax with a row in registers, and batch norm, whose rows (a channel: 256 x 3136
// values) do not fit on one block. Shares are of the device copy's 4.21 TB/s on an H200.
//
//   macro         bytes moved          what it does                    what it reached
//   SOFTMAX       256 MiB in and out   a row a block, two reductions   8192 wide, 8192 x 512: 97 %
//   SOFTMAX_WARP  the same             a row a warp                    512 wide and less: 99 %
//   SOFTMAX_AHEAD the same             fixed grid, next row on its way 88 %
//   BATCH_STATS   196 MiB in           partial (mean, M2) of each channel for a range of images
//   BATCH_APPLY   196 MiB in and out   merges those partials in its prologue, normalises: both
//                                      together 160 us, 92 % of what three passes cost
//   BATCH_CLUSTER 196 MiB in and out   a channel in the shared memory of a cluster of 16: 190 us
//   BATCH_STREAM  the same             the next channel on its way meanwhile: 158 to 170 us

struct row_params {
  const float* in;
  float* out;
};

template <int VECTORS, int THREADS, bool STREAM>
TGC_DEVICE void softmax_row(float_4 (&value)[VECTORS], float* out, long long base, float* slots) {
  float top = -INFINITY;
#pragma unroll
  for (int v = 0; v < VECTORS; v++)
#pragma unroll
    for (int i = 0; i < 4; i++) top = fmaxf(top, value[v].at[i]);
  top = block_reduce<THREADS>(top, tgc_max_op(), slots);
  float sum = 0.0f;
#pragma unroll
  for (int v = 0; v < VECTORS; v++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      value[v].at[i] = expf(value[v].at[i] - top);
      sum += value[v].at[i];
    }
  sum = block_reduce<THREADS>(sum, tgc_sum_op(), slots + THREADS / 32);
  float scale = 1.0f / sum;
#pragma unroll
  for (int v = 0; v < VECTORS; v++) {
#pragma unroll
    for (int i = 0; i < 4; i++) value[v].at[i] *= scale;
    if (STREAM)
      store_stream(out, base + v * THREADS * 4, value[v]);
    else
      tgc_store_vector(out, base + v * THREADS * 4, value[v]);
  }
}

#define SOFTMAX(NAME, THREADS, VECTORS, STREAM, MIN_BLOCKS)                                    \
  typedef row_params NAME##_params;                                                            \
  __device__ void NAME##_stage(int virtual_block, const NAME##_params& p, char* smem) {        \
    long long base = (long long)virtual_block * (THREADS * VECTORS * 4) + threadIdx.x * 4;     \
    float_4 value[VECTORS];                                                                    \
    _Pragma("unroll") for (int v = 0; v < VECTORS; v++) value[v] =                             \
        STREAM ? load_stream(p.in, base + v * THREADS * 4)                                     \
               : tgc_load_vector<4>(p.in, base + v * THREADS * 4);                             \
    softmax_row<VECTORS, THREADS, STREAM>(value, p.out, base, reinterpret_cast<float*>(smem)); \
  }                                                                                            \
  TGC_KERNEL_MIN(NAME, THREADS, MIN_BLOCKS)

// Narrow rows: a warp a row, THREADS / 32 rows a block, no shared memory.
#define SOFTMAX_WARP(NAME, THREADS, VECTORS)                                             \
  typedef row_params NAME##_params;                                                      \
  __device__ void NAME##_stage(int virtual_block, const NAME##_params& p, char* smem) {  \
    long long row = (long long)virtual_block * (THREADS / 32) + threadIdx.x / 32;        \
    long long base = row * (32 * VECTORS * 4) + threadIdx.x % 32 * 4;                    \
    float_4 value[VECTORS];                                                              \
    _Pragma("unroll") for (int v = 0; v < VECTORS; v++) value[v] =                       \
        tgc_load_vector<4>(p.in, base + v * 128);                                        \
    softmax_row<VECTORS, 32, false>(value, p.out, base, reinterpret_cast<float*>(smem)); \
  }                                                                                      \
  TGC_KERNEL(NAME, THREADS)

// A fixed grid; the next row is on its way while this one is reduced.
#define SOFTMAX_AHEAD(NAME, THREADS, VECTORS, ROWS, BLOCKS, MIN_BLOCKS)                           \
  typedef row_params NAME##_params;                                                               \
  __device__ void NAME##_stage(int virtual_block, const NAME##_params& p, char* smem) {           \
    constexpr int WIDTH = THREADS * VECTORS * 4;                                                  \
    float_4 value[VECTORS], next[VECTORS];                                                        \
    _Pragma("unroll") for (int v = 0; v < VECTORS; v++) next[v] =                                 \
        tgc_load_vector<4>(p.in, virtual_block * WIDTH + threadIdx.x * 4 + v * THREADS * 4);      \
    int turn = 0;                                                                                 \
    for (int row = virtual_block; row < ROWS; row += BLOCKS, turn ^= 1) {                         \
      _Pragma("unroll") for (int v = 0; v < VECTORS; v++) value[v] = next[v];                     \
      if (row + BLOCKS < ROWS)                                                                    \
        _Pragma("unroll") for (int v = 0; v < VECTORS; v++) next[v] =                             \
            tgc_load_vector<4>(p.in, (row + BLOCKS) * WIDTH + threadIdx.x * 4 + v * THREADS * 4); \
      softmax_row<VECTORS, THREADS, false>(                                                       \
          value, p.out, row * WIDTH + threadIdx.x * 4,                                            \
          reinterpret_cast<float*>(smem) + turn * (THREADS / 16));                                \
    }                                                                                             \
  }                                                                                               \
  TGC_KERNEL_MIN(NAME, THREADS, MIN_BLOCKS)

// ---- batch norm ---------------------------------------------------------------------------------
// Welford's triple. Values held in registers are reduced in two passes (mean, then squares about
// it), and only whole groups are merged by Chan's formula, so there is no division per element.
struct moments {
  float count, mean, squares;
};
TGC_DEVICE moments merge(const moments& a, const moments& b) {
  float count = a.count + b.count;
  float share = count > 0.0f ? b.count / count : 0.0f;
  float delta = b.mean - a.mean;
  moments m = {count, a.mean + delta * share,
               a.squares + b.squares + delta * delta * a.count * share};
  return m;
}
template <int VECTORS>
TGC_DEVICE moments moments_of(const float_4 (&value)[VECTORS]) {
  float sum = 0.0f, squares = 0.0f;
#pragma unroll
  for (int v = 0; v < VECTORS; v++)
#pragma unroll
    for (int i = 0; i < 4; i++) sum += value[v].at[i];
  float mean = sum * (1.0f / (VECTORS * 4));
#pragma unroll
  for (int v = 0; v < VECTORS; v++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      float d = value[v].at[i] - mean;
      squares += d * d;
    }
  moments m = {VECTORS * 4.0f, mean, squares};
  return m;
}
TGC_DEVICE moments warp_merge(moments m) {
#pragma unroll
  for (int offset = 16; offset >= 1; offset /= 2) {
    moments other = {__shfl_xor_sync(0xffffffffu, m.count, offset),
                     __shfl_xor_sync(0xffffffffu, m.mean, offset),
                     __shfl_xor_sync(0xffffffffu, m.squares, offset)};
    bool upper = threadIdx.x & offset;  // both lanes merge in the same order
    m = upper ? merge(other, m) : merge(m, other);
  }
  return m;
}
template <int THREADS>
TGC_DEVICE moments block_merge(moments m, moments* slots) {
  m = warp_merge(m);
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = m;
  __syncthreads();
  moments total = slots[0];
#pragma unroll
  for (int w = 1; w < THREADS / 32; w++) total = merge(total, slots[w]);
  return total;
}

struct batch_stats_params {
  const float* in;
  float* partials;  // [channels][splits][2]: mean, M2
  long long first_channel;
};
struct batch_apply_params {
  const float* in;
  const float* partials;
  const float* weight;
  const float* bias;
  float* out;
  float* statistics;  // [channels][2]: mean, variance
  long long first_channel;
};

// Block (channel, split): SPLIT_IMAGES images of PLANE values each, VECTORS float4s in flight a
// thread.
template <int CHANNELS, int PLANE, int SPLITS, int SPLIT_IMAGES, int VECTORS, int THREADS>
TGC_DEVICE void batch_stats(int virtual_block, const batch_stats_params& p, char* smem) {
  constexpr int Q = PLANE / 4, TOTAL = SPLIT_IMAGES * Q, TURNS = TOTAL / (THREADS * VECTORS);
  static_assert(TOTAL % (THREADS * VECTORS) == 0, "whole turns");
  int channel = virtual_block / SPLITS + (int)p.first_channel, split = virtual_block % SPLITS;
  moments total = {0.0f, 0.0f, 0.0f};
  edge_early();
  edge_late();
#pragma unroll 1
  for (int turn = 0; turn < TURNS; turn++) {
    float_4 value[VECTORS];
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
      int i = (turn * VECTORS + v) * THREADS + threadIdx.x;
      int image = split * SPLIT_IMAGES + i / Q;
      value[v] = tgc_load_vector<4>(p.in, (image * CHANNELS + channel) * PLANE + i % Q * 4);
    }
    total = merge(total, moments_of<VECTORS>(value));
  }
  total = block_merge<THREADS>(total, reinterpret_cast<moments*>(smem));
  if (threadIdx.x == 0) {
    tgc_store(p.partials, (channel * SPLITS + split) * 2, total.mean);
    tgc_store(p.partials, (channel * SPLITS + split) * 2 + 1, total.squares);
  }
}

// Block (image group, channel): GROUP planes; REVERSE walks the images backwards, so that what the
// statistics read last, and the cache still holds, is read first.
template <int IMAGES, int CHANNELS, int PLANE, int SPLITS, int GROUP, int VECTORS, int THREADS,
          bool REVERSE, bool STREAM>
TGC_DEVICE void batch_apply(int virtual_block, int channels_here, const batch_apply_params& p,
                            char* smem) {
  constexpr int Q = PLANE / 4, TOTAL = GROUP * Q, TURNS = TOTAL / (THREADS * VECTORS);
  static_assert(TOTAL % (THREADS * VECTORS) == 0, "whole turns");
  int order = REVERSE ? channels_here * (IMAGES / GROUP) - 1 - virtual_block : virtual_block;
  int channel = order / (IMAGES / GROUP) + (int)p.first_channel, group = order % (IMAGES / GROUP);
  int lane = threadIdx.x % 32;
  edge_early();
  float weight = tgc_load(p.weight, channel), bias = tgc_load(p.bias, channel);
  edge_late();
  moments total = {0.0f, 0.0f, 0.0f};
  if (lane < SPLITS) {
    total.count = IMAGES / SPLITS * PLANE;
    total.mean = tgc_load(p.partials, (channel * SPLITS + lane) * 2);
    total.squares = tgc_load(p.partials, (channel * SPLITS + lane) * 2 + 1);
  }
  float_4 value[VECTORS];
#pragma unroll
  for (int v = 0; v < VECTORS; v++) {
    int i = v * THREADS + threadIdx.x;
    long long at = ((group * GROUP + i / Q) * CHANNELS + channel) * PLANE + i % Q * 4;
    value[v] = STREAM ? load_stream(p.in, at) : tgc_load_vector<4>(p.in, at);
  }
  total = warp_merge(total);
  float variance = total.squares / (IMAGES * PLANE);
  float scale = rsqrtf(variance + 1e-5f) * weight, shift = bias - total.mean * scale;
  if (group == 0 && threadIdx.x == 0) {
    tgc_store(p.statistics, channel * 2, total.mean);
    tgc_store(p.statistics, channel * 2 + 1, variance);
  }
#pragma unroll 1
  for (int turn = 0; turn < TURNS; turn++) {
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
      int i = (turn * VECTORS + v) * THREADS + threadIdx.x;
      long long at = ((group * GROUP + i / Q) * CHANNELS + channel) * PLANE + i % Q * 4;
      if (turn > 0) value[v] = STREAM ? load_stream(p.in, at) : tgc_load_vector<4>(p.in, at);
#pragma unroll
      for (int j = 0; j < 4; j++) value[v].at[j] = value[v].at[j] * scale + shift;
    }
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
      int i = (turn * VECTORS + v) * THREADS + threadIdx.x;
      long long at = ((group * GROUP + i / Q) * CHANNELS + channel) * PLANE + i % Q * 4;
      if (STREAM)
        store_stream(p.out, at, value[v]);
      else
        tgc_store_vector(p.out, at, value[v]);
    }
  }
}

#define BATCH_STATS(NAME, IMAGES, CHANNELS, PLANE, SPLITS, VECTORS, THREADS)                  \
  typedef batch_stats_params NAME##_params;                                                   \
  __device__ void NAME##_stage(int virtual_block, const NAME##_params& p, char* smem) {       \
    batch_stats<CHANNELS, PLANE, SPLITS, IMAGES / SPLITS, VECTORS, THREADS>(virtual_block, p, \
                                                                            smem);            \
  }                                                                                           \
  TGC_KERNEL(NAME, THREADS)

#define BATCH_APPLY(NAME, IMAGES, CHANNELS, PLANE, SPLITS, GROUP, VECTORS, THREADS, REVERSE, \
                    STREAM, HERE)                                                            \
  typedef batch_apply_params NAME##_params;                                                  \
  __device__ void NAME##_stage(int virtual_block, const NAME##_params& p, char* smem) {      \
    batch_apply<IMAGES, CHANNELS, PLANE, SPLITS, GROUP, VECTORS, THREADS, REVERSE, STREAM>(  \
        virtual_block, HERE, p, smem);                                                       \
  }                                                                                          \
  TGC_KERNEL(NAME, THREADS)

// A cluster of 16 blocks holds one channel in shared memory (16 images, 196 KiB a block). The
// blocks exchange their moments through distributed shared memory.
struct batch_cluster_params {
  const float* in;
  const float* weight;
  const float* bias;
  float* out;
  float* statistics;
};

TGC_DEVICE void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}
TGC_DEVICE float cluster_read(const float* pointer, int rank) {
  unsigned int address = (unsigned int)__cvta_generic_to_shared(pointer), remote;
  float value;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(remote) : "memory");
  return value;
}

template <int IMAGES, int CHANNELS, int PLANE, int THREADS>
TGC_DEVICE void batch_cluster(int virtual_block, const batch_cluster_params& p, char* smem) {
  constexpr int RANKS = 16, HERE = IMAGES / RANKS, Q = PLANE / 4, TOTAL = HERE * Q, VECTORS = 7;
  constexpr int TURNS = TOTAL / (THREADS * VECTORS);
  static_assert(TOTAL % (THREADS * VECTORS) == 0, "whole turns");
  int channel = virtual_block / RANKS, rank = virtual_block % RANKS, lane = threadIdx.x % 32;
  moments* slots = reinterpret_cast<moments*>(smem);
  float* shared_moments = reinterpret_cast<float*>(smem) + 96;
  float_4* held = reinterpret_cast<float_4*>(smem + 512);
  moments total = {0.0f, 0.0f, 0.0f};
  float weight = tgc_load(p.weight, channel), bias = tgc_load(p.bias, channel);
#pragma unroll 1
  for (int turn = 0; turn < TURNS; turn++) {
    float_4 value[VECTORS];
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
      int i = (turn * VECTORS + v) * THREADS + threadIdx.x;
      value[v] =
          load_stream(p.in, ((rank * HERE + i / Q) * CHANNELS + channel) * PLANE + i % Q * 4);
    }
#pragma unroll
    for (int v = 0; v < VECTORS; v++) held[(turn * VECTORS + v) * THREADS + threadIdx.x] = value[v];
    total = merge(total, moments_of<VECTORS>(value));
  }
  total = block_merge<THREADS>(total, slots);
  if (threadIdx.x == 0) {
    shared_moments[0] = total.mean;
    shared_moments[1] = total.squares;
  }
  cluster_barrier();
  total.count = lane < RANKS ? (float)(HERE * PLANE) : 0.0f;
  total.mean = lane < RANKS ? cluster_read(shared_moments, lane) : 0.0f;
  total.squares = lane < RANKS ? cluster_read(shared_moments + 1, lane) : 0.0f;
  total = warp_merge(total);
  float variance = total.squares / (IMAGES * PLANE);
  float scale = rsqrtf(variance + 1e-5f) * weight, shift = bias - total.mean * scale;
  if (rank == 0 && threadIdx.x == 0) {
    tgc_store(p.statistics, channel * 2, total.mean);
    tgc_store(p.statistics, channel * 2 + 1, variance);
  }
  for (int i = threadIdx.x; i < TOTAL; i += THREADS) {
    float_4 value = held[i];
#pragma unroll
    for (int j = 0; j < 4; j++) value.at[j] = value.at[j] * scale + shift;
    store_stream(p.out, ((rank * HERE + i / Q) * CHANNELS + channel) * PLANE + i % Q * 4, value);
  }
  cluster_barrier();  // nobody leaves while its moments may still be read
}

#define BATCH_CLUSTER(NAME, IMAGES, CHANNELS, PLANE, THREADS)                           \
  typedef batch_cluster_params NAME##_params;                                           \
  __device__ void NAME##_stage(int virtual_block, const NAME##_params& p, char* smem) { \
    batch_cluster<IMAGES, CHANNELS, PLANE, THREADS>(virtual_block, p, smem);            \
  }                                                                                     \
  extern "C" __global__ void __cluster_dims__(16, 1, 1) __launch_bounds__(THREADS, 1)   \
      NAME(const __grid_constant__ NAME##_params p) {                                   \
    extern __shared__ __align__(16) char smem[];                                        \
    NAME##_stage(blockIdx.x, p, smem);                                                  \
  }

// The same with a fixed grid: as soon as a value is normalised and stored, the same slot of shared
// memory is filled with the next channel's, so that reading and writing overlap. Threads read only
// slots that they filled.
template <int IMAGES, int CHANNELS, int PLANE, int THREADS, int CLUSTERS>
TGC_DEVICE void batch_stream(int virtual_block, const batch_cluster_params& p, char* smem) {
  constexpr int RANKS = 16, HERE = IMAGES / RANKS, Q = PLANE / 4, TOTAL = HERE * Q, VECTORS = 7;
  constexpr int TURNS = TOTAL / (THREADS * VECTORS);
  static_assert(TOTAL % (THREADS * VECTORS) == 0, "whole turns");
  int rank = virtual_block % RANKS, lane = threadIdx.x % 32, turn_of_slots = 0;
  moments* slots = reinterpret_cast<moments*>(smem);
  float* held = reinterpret_cast<float*>(smem + 512);
  for (int i = threadIdx.x; i < TOTAL; i += THREADS)
    copy_async(
        held + i * 4,
        p.in + ((rank * HERE + i / Q) * CHANNELS + virtual_block / RANKS) * PLANE + i % Q * 4);
#pragma unroll 1
  for (int channel = virtual_block / RANKS; channel < CHANNELS; channel += CLUSTERS) {
    float* shared_moments = reinterpret_cast<float*>(smem) + 96 + 2 * turn_of_slots;
    turn_of_slots ^= 1;
    asm volatile("cp.async.wait_all;" ::: "memory");
    moments total = {0.0f, 0.0f, 0.0f};
#pragma unroll 1
    for (int turn = 0; turn < TURNS; turn++) {
      float_4 value[VECTORS];
#pragma unroll
      for (int v = 0; v < VECTORS; v++)
        value[v] =
            *reinterpret_cast<float_4*>(held + ((turn * VECTORS + v) * THREADS + threadIdx.x) * 4);
      total = merge(total, moments_of<VECTORS>(value));
    }
    total = block_merge<THREADS>(total, slots);
    if (threadIdx.x == 0) {
      shared_moments[0] = total.mean;
      shared_moments[1] = total.squares;
    }
    float weight = tgc_load(p.weight, channel), bias = tgc_load(p.bias, channel);
    cluster_barrier();
    total.count = lane < RANKS ? (float)(HERE * PLANE) : 0.0f;
    total.mean = lane < RANKS ? cluster_read(shared_moments, lane) : 0.0f;
    total.squares = lane < RANKS ? cluster_read(shared_moments + 1, lane) : 0.0f;
    total = warp_merge(total);
    float variance = total.squares / (IMAGES * PLANE);
    float scale = rsqrtf(variance + 1e-5f) * weight, shift = bias - total.mean * scale;
    if (rank == 0 && threadIdx.x == 0) {
      tgc_store(p.statistics, channel * 2, total.mean);
      tgc_store(p.statistics, channel * 2 + 1, variance);
    }
#pragma unroll 7
    for (int i = threadIdx.x; i < TOTAL; i += THREADS) {
      float_4 value = *reinterpret_cast<float_4*>(held + i * 4);
      int at = ((rank * HERE + i / Q) * CHANNELS + channel) * PLANE + i % Q * 4;
      if (channel + CLUSTERS < CHANNELS) copy_async(held + i * 4, p.in + at + CLUSTERS * PLANE);
#pragma unroll
      for (int j = 0; j < 4; j++) value.at[j] = value.at[j] * scale + shift;
      store_stream(p.out, at, value);
    }
  }
  cluster_barrier();
}

#define BATCH_STREAM(NAME, IMAGES, CHANNELS, PLANE, THREADS, CLUSTERS)                  \
  typedef batch_cluster_params NAME##_params;                                           \
  __device__ void NAME##_stage(int virtual_block, const NAME##_params& p, char* smem) { \
    batch_stream<IMAGES, CHANNELS, PLANE, THREADS, CLUSTERS>(virtual_block, p, smem);   \
  }                                                                                     \
  extern "C" __global__ void __cluster_dims__(16, 1, 1) __launch_bounds__(THREADS, 1)   \
      NAME(const __grid_constant__ NAME##_params p) {                                   \
    extern __shared__ __align__(16) char smem[];                                        \
    NAME##_stage(blockIdx.x, p, smem);                                                  \
  }
