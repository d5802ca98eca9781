// MAP and COL skeletons and the full sum, in every shape that a generator could choose, on 8192 x
// 8192 float32. One macro line a variant; bandwidth.py writes those lines, hand_step.py times them.
// Shares are of the device copy's 4.21 TB/s on an H200, best variant first.
//
//   macro             bytes moved           best shape, what it reached
//   MAP_ONCE          256 MiB in and out    unroll 1, block 128 or 256: 100 %, with gelu 100 %
//   MAP_STRIDE        the same              a fixed grid that strides: 90 % at best
//   MAP_SCALAR        the same              one float an access: unroll 4, block 256: 100 %
//   MAP_ADAM          1 GiB in, 768 MiB out unroll 1, block 128 or 256: 101 %
//   MAP_CAST          128 MiB in, 128 or    16 bytes of the wider type a thread: 98 to 99 %
//                     256 MiB out
//   TRANSPOSE_LINEAR  256 MiB in and out    28 %
//   TRANSPOSE_BLOCKED the same              46 %
//   TRANSPOSE_TILE    the same              64 x 64 in shared memory: 95 %, 32 x 32: 94 %
//   SUM_ALL           256 MiB in            unroll 4, block 256, 4 blocks a multiprocessor: 103 %,
//                                           SUM_PARTIALS (1 x 1024) included
//   COL_SUM           256 MiB in            unroll 4, block 256, 512 blocks: 102 %, COL_PARTIALS
//                                           (a thread a column) included

struct map_copy {
  static TGC_DEVICE float map(float x) { return x + 1.0f; }
};
struct map_gelu {  // gelu(x) * x + 1 with the exact gelu
  static TGC_DEVICE float map(float x) {
    return 0.5f * x * (1.0f + erff(x * 0.70710678f)) * x + 1.0f;
  }
};

struct map_params {
  const float* in;
  float* out;
};

// One tile: UNROLL float4s a thread, THREADS float4s apart; every load is issued before the first
// is used.
template <typename OP, int UNROLL, int THREADS, bool STREAM>
TGC_DEVICE void map_tile(int tile, int n, const map_params& p) {
  int base = tile * (THREADS * UNROLL * 4) + threadIdx.x * 4;
  float_4 value[UNROLL];
  if (base + (UNROLL - 1) * THREADS * 4 + 4 <= n) {
#pragma unroll
    for (int u = 0; u < UNROLL; u++)
      value[u] = STREAM ? load_stream(p.in, base + u * THREADS * 4)
                        : tgc_load_vector<4>(p.in, base + u * THREADS * 4);
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
#pragma unroll
      for (int i = 0; i < 4; i++) value[u].at[i] = OP::map(value[u].at[i]);
      if (STREAM)
        store_stream(p.out, base + u * THREADS * 4, value[u]);
      else
        tgc_store_vector(p.out, base + u * THREADS * 4, value[u]);
    }
  } else {
    for (int u = 0; u < UNROLL; u++)
      for (int i = base + u * THREADS * 4; i < base + u * THREADS * 4 + 4; i++)
        if (i < n) tgc_store(p.out, i, OP::map(tgc_load(p.in, i)));
  }
}

#define MAP_ONCE(NAME, OP, N, UNROLL, THREADS, STREAM)                                  \
  typedef map_params NAME##_params;                                                     \
  __device__ void NAME##_stage(int virtual_block, const NAME##_params& p, char* smem) { \
    map_tile<OP, UNROLL, THREADS, STREAM>(virtual_block, N, p);                         \
  }                                                                                     \
  TGC_KERNEL(NAME, THREADS)

// A fixed grid of BLOCKS blocks walks over the tiles.
#define MAP_STRIDE(NAME, OP, N, UNROLL, THREADS, BLOCKS)                                           \
  typedef map_params NAME##_params;                                                                \
  __device__ void NAME##_stage(int virtual_block, const NAME##_params& p, char* smem) {            \
    for (int tile = virtual_block; tile < (N + THREADS * UNROLL * 4 - 1) / (THREADS * UNROLL * 4); \
         tile += BLOCKS)                                                                           \
      map_tile<OP, UNROLL, THREADS, false>(tile, N, p);                                            \
  }                                                                                                \
  TGC_KERNEL(NAME, THREADS)

// A full sum: block b adds tiles b, b + BLOCKS, ... UNROLL independent partial sums a thread,
// combined in fixed order.
template <int N, int UNROLL, int THREADS, int BLOCKS>
TGC_DEVICE void sum_blocks(int virtual_block, const map_params& p, char* smem) {
  static_assert(N % (THREADS * UNROLL * 4) == 0, "whole tiles");
  float_4 total[UNROLL] = {};
#pragma unroll 1
  for (int tile = virtual_block; tile < N / (THREADS * UNROLL * 4); tile += BLOCKS) {
    int base = tile * (THREADS * UNROLL * 4) + threadIdx.x * 4;
    float_4 value[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) value[u] = tgc_load_vector<4>(p.in, base + u * THREADS * 4);
#pragma unroll
    for (int u = 0; u < UNROLL; u++)
#pragma unroll
      for (int i = 0; i < 4; i++) total[u].at[i] += value[u].at[i];
  }
#pragma unroll
  for (int u = 1; u < UNROLL; u++)
#pragma unroll
    for (int i = 0; i < 4; i++) total[0].at[i] += total[u].at[i];
  float sum = (total[0].at[0] + total[0].at[1]) + (total[0].at[2] + total[0].at[3]);
  sum = block_reduce<THREADS>(sum, tgc_sum_op(), reinterpret_cast<float*>(smem));
  if (threadIdx.x == 0) tgc_store(p.out, virtual_block, sum);
}

#define SUM_ALL(NAME, N, UNROLL, THREADS, BLOCKS)                                       \
  typedef map_params NAME##_params;                                                     \
  __device__ void NAME##_stage(int virtual_block, const NAME##_params& p, char* smem) { \
    edge_early();                                                                       \
    edge_late();                                                                        \
    sum_blocks<N, UNROLL, THREADS, BLOCKS>(virtual_block, p, smem);                     \
  }                                                                                     \
  TGC_KERNEL(NAME, THREADS)

// The second stage of a full sum: one block of 1024 over COUNT partials.
#define SUM_PARTIALS(NAME, COUNT)                                                               \
  typedef map_params NAME##_params;                                                             \
  __device__ void NAME##_stage(int virtual_block, const NAME##_params& p, char* smem) {         \
    float sum = 0.0f;                                                                           \
    edge_early();                                                                               \
    edge_late();                                                                                \
    _Pragma("unroll") for (int i = threadIdx.x; i < COUNT; i += 1024) sum += tgc_load(p.in, i); \
    sum = block_reduce<1024>(sum, tgc_sum_op(), reinterpret_cast<float*>(smem));                \
    if (threadIdx.x == 0) tgc_store(p.out, 0, sum);                                             \
  }                                                                                             \
  TGC_KERNEL(NAME, 1024)

// COL: a warp owns 128 columns (a float4 a lane), the block's warps take turns at the rows of one
// of SPLITS row ranges; UNROLL rows in flight a thread.
template <int ROWS, int COLUMNS, int UNROLL, int THREADS, int SPLITS>
TGC_DEVICE void col_sum(int virtual_block, const map_params& p, char* smem) {
  constexpr int WARPS = THREADS / 32, TILES = COLUMNS / 128, RANGE = ROWS / SPLITS;
  static_assert(RANGE % (WARPS * UNROLL) == 0, "whole turns");
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int column = virtual_block % TILES * 128 + lane * 4, split = virtual_block / TILES;
  float_4 total[UNROLL] = {};
  int at = (split * RANGE + warp) * COLUMNS + column;
#pragma unroll 1
  for (int turn = 0; turn < RANGE / (WARPS * UNROLL); turn++) {
    float_4 value[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) value[u] = tgc_load_vector<4>(p.in, at + u * WARPS * COLUMNS);
#pragma unroll
    for (int u = 0; u < UNROLL; u++)
#pragma unroll
      for (int i = 0; i < 4; i++) total[u].at[i] += value[u].at[i];
    at += WARPS * UNROLL * COLUMNS;
  }
#pragma unroll
  for (int u = 1; u < UNROLL; u++)
#pragma unroll
    for (int i = 0; i < 4; i++) total[0].at[i] += total[u].at[i];
  float_4* slots = reinterpret_cast<float_4*>(smem);
  slots[threadIdx.x] = total[0];
  __syncthreads();
  if (threadIdx.x < 128) {
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) sum += reinterpret_cast<float*>(smem)[w * 128 + threadIdx.x];
    tgc_store(p.out, split * COLUMNS + virtual_block % TILES * 128 + threadIdx.x, sum);
  }
}

#define COL_SUM(NAME, ROWS, COLUMNS, UNROLL, THREADS, SPLITS)                           \
  typedef map_params NAME##_params;                                                     \
  __device__ void NAME##_stage(int virtual_block, const NAME##_params& p, char* smem) { \
    edge_early();                                                                       \
    edge_late();                                                                        \
    col_sum<ROWS, COLUMNS, UNROLL, THREADS, SPLITS>(virtual_block, p, smem);            \
  }                                                                                     \
  TGC_KERNEL(NAME, THREADS)

// The second stage of COL: SPLITS partials a column, a thread a column.
#define COL_PARTIALS(NAME, COLUMNS, SPLITS)                                             \
  typedef map_params NAME##_params;                                                     \
  __device__ void NAME##_stage(int virtual_block, const NAME##_params& p, char* smem) { \
    int column = virtual_block * 64 + threadIdx.x;                                      \
    float part[SPLITS], sum = 0.0f;                                                     \
    edge_early();                                                                       \
    edge_late();                                                                        \
    _Pragma("unroll") for (int s = 0; s < SPLITS; s++) part[s] =                        \
        tgc_load(p.in, s * COLUMNS + column);                                           \
    _Pragma("unroll") for (int s = 0; s < SPLITS; s++) sum += part[s];                  \
    tgc_store(p.out, column, sum);                                                      \
  }                                                                                     \
  TGC_KERNEL(NAME, 64)

// The same for many partials: a block takes 32 columns, its 8 warps take turns at the partials.
#define COL_PARTIALS_WIDE(NAME, COLUMNS, SPLITS)                                        \
  typedef map_params NAME##_params;                                                     \
  __device__ void NAME##_stage(int virtual_block, const NAME##_params& p, char* smem) { \
    int warp = threadIdx.x / 32, column = virtual_block * 32 + threadIdx.x % 32;        \
    float part[SPLITS / 8], sum = 0.0f;                                                 \
    edge_early();                                                                       \
    edge_late();                                                                        \
    _Pragma("unroll") for (int s = 0; s < SPLITS / 8; s++) part[s] =                    \
        tgc_load(p.in, (s * 8 + warp) * COLUMNS + column);                              \
    _Pragma("unroll") for (int s = 0; s < SPLITS / 8; s++) sum += part[s];              \
    float* slots = reinterpret_cast<float*>(smem);                                      \
    slots[threadIdx.x] = sum;                                                           \
    __syncthreads();                                                                    \
    if (warp == 0) {                                                                    \
      _Pragma("unroll") for (int w = 1; w < 8; w++) sum += slots[w * 32 + threadIdx.x]; \
      tgc_store(p.out, column, sum);                                                    \
    }                                                                                   \
  }                                                                                     \
  TGC_KERNEL(NAME, 256)

// ---- several arrays, 16-bit types, and an input that lies across the output's order -------------

// Adam's update: four arrays read, three written.
struct adam_params {
  float* parameter;
  const float* gradient;
  float* mean;
  float* square;
};
#define MAP_ADAM(NAME, UNROLL, THREADS)                                                 \
  typedef adam_params NAME##_params;                                                    \
  __device__ void NAME##_stage(int virtual_block, const NAME##_params& p, char* smem) { \
    int base = (virtual_block * UNROLL * THREADS + threadIdx.x) * 4;                    \
    float_4 w[UNROLL], g[UNROLL], m[UNROLL], v[UNROLL];                                 \
    _Pragma("unroll") for (int u = 0; u < UNROLL; u++) {                                \
      int at = base + u * THREADS * 4;                                                  \
      w[u] = tgc_load_vector<4>(p.parameter, at);                                       \
      g[u] = tgc_load_vector<4>(p.gradient, at);                                        \
      m[u] = tgc_load_vector<4>(p.mean, at);                                            \
      v[u] = tgc_load_vector<4>(p.square, at);                                          \
    }                                                                                   \
    _Pragma("unroll") for (int u = 0; u < UNROLL; u++) {                                \
      int at = base + u * THREADS * 4;                                                  \
      _Pragma("unroll") for (int i = 0; i < 4; i++) {                                   \
        float slope = g[u].at[i];                                                       \
        m[u].at[i] = 0.9f * m[u].at[i] + 0.1f * slope;                                  \
        v[u].at[i] = 0.999f * v[u].at[i] + 0.001f * slope * slope;                      \
        w[u].at[i] -= 0.001f * m[u].at[i] / (sqrtf(v[u].at[i]) + 1e-8f);                \
      }                                                                                 \
      tgc_store_vector(p.parameter, at, w[u]);                                          \
      tgc_store_vector(p.mean, at, m[u]);                                               \
      tgc_store_vector(p.square, at, v[u]);                                             \
    }                                                                                   \
  }                                                                                     \
  TGC_KERNEL(NAME, THREADS)

// bfloat16 to OUT, VECTOR elements a thread; a float32 side wider than 16 bytes takes several
// accesses.
struct cast_params {
  const tgc_bfloat16* in;
  void* out;
};
template <int VECTOR, class OUT>
TGC_DEVICE void cast_tile(int virtual_block, int threads, const cast_params& p) {
  constexpr int WRITE = 16 / sizeof(OUT) < VECTOR ? 16 / sizeof(OUT) : VECTOR;
  long long at = ((long long)virtual_block * threads + threadIdx.x) * VECTOR;
  tgc_vector<tgc_bfloat16, VECTOR> value = tgc_load_vector<VECTOR>(p.in, at);
#pragma unroll
  for (int j = 0; j < VECTOR; j += WRITE) {
    tgc_vector<OUT, WRITE> result;
#pragma unroll
    for (int i = 0; i < WRITE; i++)
      result.at[i] = tgc_to_storage<OUT>(tgc_to_compute(value.at[j + i]) + 1.0f);
    tgc_store_vector(static_cast<OUT*>(p.out), at + j, result);
  }
}
#define MAP_CAST(NAME, OUT, VECTOR, THREADS)                                            \
  typedef cast_params NAME##_params;                                                    \
  __device__ void NAME##_stage(int virtual_block, const NAME##_params& p, char* smem) { \
    cast_tile<VECTOR, OUT>(virtual_block, THREADS, p);                                  \
  }                                                                                     \
  TGC_KERNEL(NAME, THREADS)

// out = in.T + 1, one element a thread in the output's order: the loads of a warp hit 32 lines.
#define TRANSPOSE_LINEAR(NAME, ROWS, COLUMNS, THREADS)                                  \
  typedef map_params NAME##_params;                                                     \
  __device__ void NAME##_stage(int virtual_block, const NAME##_params& p, char* smem) { \
    int i = virtual_block * THREADS + threadIdx.x;                                      \
    tgc_store(p.out, i, tgc_load(p.in, i % ROWS * COLUMNS + i / ROWS) + 1.0f);          \
  }                                                                                     \
  TGC_KERNEL(NAME, THREADS)

// The same with a block of 256 on a 32 x 32 tile of the output, thread order as above: no shared
// memory, but the 32 lines that a warp touches are touched by the block's other warps too.
#define TRANSPOSE_BLOCKED(NAME, ROWS, COLUMNS)                                          \
  typedef map_params NAME##_params;                                                     \
  __device__ void NAME##_stage(int virtual_block, const NAME##_params& p, char* smem) { \
    int row = virtual_block % (ROWS / 32) * 32 + threadIdx.x % 32;                      \
    int column = virtual_block / (ROWS / 32) * 32 + threadIdx.x / 32;                   \
    float value[4];                                                                     \
    _Pragma("unroll") for (int u = 0; u < 4; u++) value[u] =                            \
        tgc_load(p.in, row * COLUMNS + column + 8 * u);                                 \
    _Pragma("unroll") for (int u = 0; u < 4; u++)                                       \
        tgc_store(p.out, (column + 8 * u) * ROWS + row, value[u] + 1.0f);               \
  }                                                                                     \
  TGC_KERNEL(NAME, 256)

// The same through shared memory: both sides coalesced. SIDE x SIDE tile, pitch SIDE + 1.
#define TRANSPOSE_TILE(NAME, ROWS, COLUMNS, SIDE)                                             \
  typedef map_params NAME##_params;                                                           \
  __device__ void NAME##_stage(int virtual_block, const NAME##_params& p, char* smem) {       \
    constexpr int LINES = 256 / SIDE, EACH = SIDE / LINES;                                    \
    float* tile = reinterpret_cast<float*>(smem);                                             \
    int row0 = virtual_block % (ROWS / SIDE) * SIDE,                                          \
        column0 = virtual_block / (ROWS / SIDE) * SIDE;                                       \
    int x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;                                       \
    float value[EACH];                                                                        \
    _Pragma("unroll") for (int u = 0; u < EACH; u++) value[u] =                               \
        tgc_load(p.in, (row0 + y + u * LINES) * COLUMNS + column0 + x);                       \
    _Pragma("unroll") for (int u = 0; u < EACH; u++) tile[(y + u * LINES) * (SIDE + 1) + x] = \
        value[u];                                                                             \
    __syncthreads();                                                                          \
    _Pragma("unroll") for (int u = 0; u < EACH; u++)                                          \
        tgc_store(p.out, (column0 + y + u * LINES) * ROWS + row0 + x,                         \
                  tile[x * (SIDE + 1) + y + u * LINES] + 1.0f);                               \
  }                                                                                           \
  TGC_KERNEL(NAME, 256)

// What is left where nothing is aligned: one float an access, UNROLL of them THREADS apart.
#define MAP_SCALAR(NAME, OP, UNROLL, THREADS)                                           \
  typedef map_params NAME##_params;                                                     \
  __device__ void NAME##_stage(int virtual_block, const NAME##_params& p, char* smem) { \
    int base = virtual_block * (UNROLL * THREADS) + threadIdx.x;                        \
    float value[UNROLL];                                                                \
    _Pragma("unroll") for (int u = 0; u < UNROLL; u++) value[u] =                       \
        tgc_load(p.in, base + u * THREADS);                                             \
    _Pragma("unroll") for (int u = 0; u < UNROLL; u++)                                  \
        tgc_store(p.out, base + u * THREADS, OP::map(value[u]));                        \
  }                                                                                     \
  TGC_KERNEL(NAME, THREADS)
