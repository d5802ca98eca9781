// CONTRACT on the ordinary float32 units (IEEE, no tensor cores): C = A @ B, A [M, K] and B [K, N]
// row-major. TFLOP/s on an H200, cuBLAS in the same run in brackets.
//
//   MATMUL        Large tiles, a grid of M N / (TM TN) blocks. Each thread keeps RM x RN sums; the
//                 next tile of A and B is fetched into registers while this one, in shared memory,
//                 is multiplied; fragments are read one k ahead. It takes any load expression.
//                 4096^3: 47.7 (51.0), 2048^3: 47.1 (50.2), 1024^3: 34.3 (38.1), 512^3: 21.6 (20.0)
//   MATMUL_ASYNC  The same tiles filled by cp.async, STAGES deep; plain loads only. 4096^3: 44.0
//   SMALL_NT, _TN The small-problem tiles of contract.cuh, with split-K partials and SUM_SPLIT.
//                 64 x 128 x 784: 2.1 us and 0.8 for the sum (8.9); 128 x 784 x 64: 1.9 us (3.4)

struct matmul_params {
  const float* a;
  const float* b;
  float* c;
};

// How threads lie over a tile: a warp is 4 x 8 lanes; a lane owns RM / 4 x RN / 4 quads of 4 x 4,
// the quads of a warp interleaved so that every shared-memory read of a quarter warp is one
// conflict-free row.
template <int TM, int TN, int RM, int RN>
struct lanes {
  static constexpr int WARP_M = 4 * RM, WARP_N = 8 * RN, WARPS_N = TN / WARP_N,
                       THREADS = TM * TN / (RM * RN);
  static_assert(TM % WARP_M == 0 && TN % WARP_N == 0, "whole warps");
  int m, n;
  TGC_DEVICE lanes() {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    m = warp / WARPS_N * WARP_M + lane / 8 * 4;
    n = warp % WARPS_N * WARP_N + lane % 8 * 4;
  }
};

template <int TM, int TN, int RM, int RN>
TGC_DEVICE void store_tile(float (&total)[RM][RN], float* c, int m0, int n0, int stride) {
#pragma unroll
  for (int i = 0; i < RM; i++)
#pragma unroll
    for (int j = 0; j < RN; j += 4) {
      float_4 v = {{total[i][j], total[i][j + 1], total[i][j + 2], total[i][j + 3]}};
      tgc_store_vector(c, (long long)(m0 + i / 4 * 16 + i % 4) * stride + n0 + j / 4 * 32, v);
    }
}

template <int M, int N, int K, int TM, int TN, int TK, int RM, int RN, int SWIZZLE>
TGC_DEVICE void tile_of(int virtual_block, int& m0, int& n0) {
  constexpr int TILES_N = N / TN, GROUP = SWIZZLE * TILES_N;
  int group = virtual_block / GROUP, rest = virtual_block % GROUP;
  m0 = (group * SWIZZLE + rest % SWIZZLE) * TM;
  n0 = rest / SWIZZLE * TN;
}

template <int M, int N, int K, int TM, int TN, int TK, int RM, int RN, int SWIZZLE>
TGC_DEVICE void matmul(int virtual_block, const matmul_params& p, char* smem) {
  typedef lanes<TM, TN, RM, RN> L;
  constexpr int THREADS = L::THREADS, PAD = 4, PITCH = TM + PAD, QK = TK / 4, QN = TN / 4;
  constexpr int EACH_A = TM * QK / THREADS, EACH_B = TK * QN / THREADS;
  constexpr int STEP_A = TK * PITCH, STEP_B = TK * TN;
  static_assert(TM * QK % THREADS == 0 && TK * QN % THREADS == 0, "whole fetches");
  int m0, n0;
  tile_of<M, N, K, TM, TN, TK, RM, RN, SWIZZLE>(virtual_block, m0, n0);
  L lane;
  float* tile_a = reinterpret_cast<float*>(smem);
  float* tile_b = tile_a + 2 * STEP_A;
  const float* a = p.a + (long long)(m0 + threadIdx.x / QK) * K + threadIdx.x % QK * 4;
  const float* b = p.b + (long long)(threadIdx.x / QN) * N + n0 + threadIdx.x % QN * 4;
  float* put_a = tile_a + threadIdx.x % QK * 4 * PITCH + threadIdx.x / QK;
  float* put_b = tile_b + threadIdx.x / QN * TN + threadIdx.x % QN * 4;
  float_4 next_a[EACH_A], next_b[EACH_B];
  float total[RM][RN] = {};

  auto fetch = [&]() {
#pragma unroll
    for (int e = 0; e < EACH_A; e++)
      next_a[e] = tgc_load_vector<4>(a, (long long)e * (THREADS / QK) * K);
#pragma unroll
    for (int e = 0; e < EACH_B; e++)
      next_b[e] = tgc_load_vector<4>(b, (long long)e * (THREADS / QN) * N);
    a += TK;
    b += (long long)TK * N;
  };
  auto put = [&](int buffer) {
#pragma unroll
    for (int e = 0; e < EACH_A; e++)
#pragma unroll
      for (int k = 0; k < 4; k++)
        put_a[buffer * STEP_A + k * PITCH + e * (THREADS / QK)] = next_a[e].at[k];
#pragma unroll
    for (int e = 0; e < EACH_B; e++)
      *reinterpret_cast<float_4*>(put_b + buffer * STEP_B + e * (THREADS / QN) * TN) = next_b[e];
  };
  float row[2][RM], column[2][RN];
  auto read = [&](int slot, int buffer, int k) {
#pragma unroll
    for (int i = 0; i < RM; i += 4) {
      float_4 v =
          *reinterpret_cast<const float_4*>(tile_a + buffer * STEP_A + k * PITCH + lane.m + i * 4);
#pragma unroll
      for (int q = 0; q < 4; q++) row[slot][i + q] = v.at[q];
    }
#pragma unroll
    for (int j = 0; j < RN; j += 4) {
      float_4 v =
          *reinterpret_cast<const float_4*>(tile_b + buffer * STEP_B + k * TN + lane.n + j * 8);
#pragma unroll
      for (int q = 0; q < 4; q++) column[slot][j + q] = v.at[q];
    }
  };

  fetch();
  put(0);
  __syncthreads();
  read(0, 0, 0);
  int buffer = 0;
  for (int k0 = 0; k0 < K; k0 += TK) {
    bool more = k0 + TK < K;
    if (more) fetch();
#pragma unroll
    for (int k = 0; k < TK; k++) {
      if (k + 1 < TK) {
        read((k + 1) % 2, buffer, k + 1);
      } else if (more) {  // the next tile is made ready while this one's last k is multiplied
        put(buffer ^ 1);
        __syncthreads();
        read(0, buffer ^ 1, 0);
      }
#pragma unroll
      for (int i = 0; i < RM; i++)
#pragma unroll
        for (int j = 0; j < RN; j++) {
          int turn =
              i % 2 ? RN - 1 - j : j;  // back and forth: the operand cache is hit at the turn
          total[i][turn] = tgc_fma(row[k % 2][i], column[k % 2][turn], total[i][turn]);
        }
    }
    buffer ^= 1;
  }
  store_tile<TM, TN, RM, RN>(total, p.c, m0 + lane.m, n0 + lane.n, N);
}

#define MATMUL(NAME, M, N, K, TM, TN, TK, RM, RN, SWIZZLE, MIN_BLOCKS)                  \
  typedef matmul_params NAME##_params;                                                  \
  __device__ void NAME##_stage(int virtual_block, const NAME##_params& p, char* smem) { \
    matmul<M, N, K, TM, TN, TK, RM, RN, SWIZZLE>(virtual_block, p, smem);               \
  }                                                                                     \
  TGC_KERNEL_MIN(NAME, (TM * TN / (RM * RN)), MIN_BLOCKS)

// A stays K-innermost in shared memory; a lane's rows lie 4 apart (row y, y + 4, ...), four k are
// read at once.
template <int M, int N, int K, int TM, int TN, int TK, int RM, int RN, int SWIZZLE, int STAGES>
TGC_DEVICE void matmul_async(int virtual_block, const matmul_params& p, char* smem) {
  typedef lanes<TM, TN, RM, RN> L;
  constexpr int THREADS = L::THREADS, PITCH = TK + 4, QK = TK / 4, QN = TN / 4;
  constexpr int EACH_A = TM * QK / THREADS, EACH_B = TK * QN / THREADS;
  constexpr int STEP_A = TM * PITCH, STEP_B = TK * TN;
  static_assert(TM * QK % THREADS == 0 && TK * QN % THREADS == 0, "whole fetches");
  int m0, n0;
  tile_of<M, N, K, TM, TN, TK, RM, RN, SWIZZLE>(virtual_block, m0, n0);
  L lane;
  int row0 = threadIdx.x / 32 / L::WARPS_N * L::WARP_M + threadIdx.x % 32 / 8;
  float* tile_a = reinterpret_cast<float*>(smem);
  float* tile_b = tile_a + STAGES * STEP_A;
  const float* a = p.a + (long long)(m0 + threadIdx.x / QK) * K + threadIdx.x % QK * 4;
  const float* b = p.b + (long long)(threadIdx.x / QN) * N + n0 + threadIdx.x % QN * 4;
  float* put_a = tile_a + threadIdx.x / QK * PITCH + threadIdx.x % QK * 4;
  float* put_b = tile_b + threadIdx.x / QN * TN + threadIdx.x % QN * 4;
  float total[RM][RN] = {};

  auto fetch = [&](int stage) {
#pragma unroll
    for (int e = 0; e < EACH_A; e++)
      copy_async(put_a + stage * STEP_A + e * (THREADS / QK) * PITCH,
                 a + (long long)e * (THREADS / QK) * K);
#pragma unroll
    for (int e = 0; e < EACH_B; e++)
      copy_async(put_b + stage * STEP_B + e * (THREADS / QN) * TN,
                 b + (long long)e * (THREADS / QN) * N);
    a += TK;
    b += (long long)TK * N;
  };
#pragma unroll
  for (int s = 0; s < STAGES - 1; s++) {
    fetch(s);
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  int stage = 0;
  for (int k0 = 0; k0 < K; k0 += TK) {
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
    __syncthreads();
    if (k0 + (STAGES - 1) * TK < K) fetch((stage + STAGES - 1) % STAGES);
    asm volatile("cp.async.commit_group;" ::: "memory");
    const float* here_a = tile_a + stage * STEP_A;
    const float* here_b = tile_b + stage * STEP_B;
#pragma unroll
    for (int k4 = 0; k4 < TK; k4 += 4) {
      float_4 row[RM];
#pragma unroll
      for (int i = 0; i < RM; i++)
        row[i] = *reinterpret_cast<const float_4*>(here_a + (row0 + i * 4) * PITCH + k4);
#pragma unroll
      for (int k = 0; k < 4; k++) {
        float_4 column[RN / 4];
#pragma unroll
        for (int j = 0; j < RN / 4; j++)
          column[j] = *reinterpret_cast<const float_4*>(here_b + (k4 + k) * TN + lane.n + j * 32);
#pragma unroll
        for (int i = 0; i < RM; i++)
#pragma unroll
          for (int j = 0; j < RN; j++) total[i][j] += row[i].at[k] * column[j / 4].at[j % 4];
      }
    }
    stage = (stage + 1) % STAGES;
  }
#pragma unroll
  for (int i = 0; i < RM; i++)
#pragma unroll
    for (int j = 0; j < RN; j += 4) {
      float_4 v = {{total[i][j], total[i][j + 1], total[i][j + 2], total[i][j + 3]}};
      tgc_store_vector(p.c, (long long)(m0 + row0 + i * 4) * N + n0 + lane.n + j * 8, v);
    }
}

#define MATMUL_ASYNC(NAME, M, N, K, TM, TN, TK, RM, RN, SWIZZLE, STAGES, MIN_BLOCKS)    \
  typedef matmul_params NAME##_params;                                                  \
  __device__ void NAME##_stage(int virtual_block, const NAME##_params& p, char* smem) { \
    matmul_async<M, N, K, TM, TN, TK, RM, RN, SWIZZLE, STAGES>(virtual_block, p, smem); \
  }                                                                                     \
  TGC_KERNEL_MIN(NAME, (TM * TN / (RM * RN)), MIN_BLOCKS)

// A [M, K], B [N, K]: both K-innermost. SPLIT > 1 writes partials [SPLIT, M, N].
#define SMALL_NT(NAME, M, N, K, TM, TN, SPLIT, THREADS)                                            \
  typedef matmul_params NAME##_params;                                                             \
  __device__ void NAME##_stage(int virtual_block, const NAME##_params& p, char* smem) {            \
    constexpr int KC = K / SPLIT, TILES_M = M / TM, TILES_N = N / TN;                              \
    typedef contract_rows<TM, TN, KC, THREADS> T;                                                  \
    int m = virtual_block % TILES_M * TM, n = virtual_block / TILES_M % TILES_N * TN;              \
    int split = virtual_block / (TILES_M * TILES_N);                                               \
    float* a = reinterpret_cast<float*>(smem);                                                     \
    float* b = a + TM * T::PITCH;                                                                  \
    tile_strip<TM, KC, THREADS> strip_a;                                                           \
    tile_strip<TN, KC, THREADS> strip_b;                                                           \
    edge_early();                                                                                  \
    edge_late();                                                                                   \
    strip_a.fetch(p.a + m * K + split * KC, K);                                                    \
    strip_b.fetch(p.b + n * K + split * KC, K);                                                    \
    strip_a.template put<T::PITCH>(a);                                                             \
    strip_b.template put<T::PITCH>(b);                                                             \
    __syncthreads();                                                                               \
    T::multiply(a, b, a);                                                                          \
    _Pragma("unroll") for (int e = threadIdx.x; e < T::OUTPUTS; e += THREADS)                      \
        tgc_store(p.c, (split * M + m + T::row_of(e)) * N + n + T::column_of(e), T::output(a, e)); \
  }                                                                                                \
  TGC_KERNEL(NAME, THREADS)

// A [K, M], B [K, N]: both K-outermost, all of K in one block.
#define SMALL_TN(NAME, M, N, K, TM, TN, THREADS)                                        \
  typedef matmul_params NAME##_params;                                                  \
  __device__ void NAME##_stage(int virtual_block, const NAME##_params& p, char* smem) { \
    typedef contract_columns<TM, TN, K, THREADS> T;                                     \
    int m = virtual_block % (M / TM) * TM, n = virtual_block / (M / TM) * TN;           \
    float* a = reinterpret_cast<float*>(smem);                                          \
    float* b = a + TM * K;                                                              \
    tile_strip<K, TM, THREADS> strip_a;                                                 \
    tile_strip<K, TN, THREADS> strip_b;                                                 \
    edge_early();                                                                       \
    edge_late();                                                                        \
    strip_a.fetch(p.a + m, M);                                                          \
    strip_b.fetch(p.b + n, N);                                                          \
    strip_a.template put<TM>(a);                                                        \
    strip_b.template put<TN>(b);                                                        \
    __syncthreads();                                                                    \
    T::multiply(a, b, reinterpret_cast<float_4*>(a));                                   \
    for (int e = threadIdx.x; e < T::OUTPUTS; e += THREADS)                             \
      tgc_store_vector(p.c, (m + T::row_of(e)) * N + n + T::column_of(e),               \
                       T::output(reinterpret_cast<float_4*>(a), e));                    \
  }                                                                                     \
  TGC_KERNEL(NAME, THREADS)

// c[i] = sum over SPLIT partials.
#define SUM_SPLIT(NAME, COUNT, SPLIT)                                                         \
  typedef matmul_params NAME##_params;                                                        \
  __device__ void NAME##_stage(int virtual_block, const NAME##_params& p, char* smem) {       \
    int i = virtual_block * 128 + threadIdx.x;                                                \
    float part[SPLIT], sum = 0.0f;                                                            \
    edge_early();                                                                             \
    edge_late();                                                                              \
    _Pragma("unroll") for (int s = 0; s < SPLIT; s++) part[s] = tgc_load(p.a, s * COUNT + i); \
    _Pragma("unroll") for (int s = 0; s < SPLIT; s++) sum += part[s];                         \
    tgc_store(p.c, i, sum);                                                                   \
  }                                                                                           \
  TGC_KERNEL(NAME, 128)
