// CONTRACT for small problems: each block owns a TM x TN tile and KC of the K axis, every thread a
// 4 x 4 micro-tile; the threads split the block's K among them and their partial tiles are summed
// in shared memory in a fixed order. Everything a block needs is loaded at once, so its time is one
// trip to memory plus the arithmetic.

// A strip of ROWS x COLS floats on its way from global memory to shared memory: fetch() issues
// every load, put() stores, so that several strips can be in flight before the first is waited for.
template <int ROWS, int COLS, int THREADS>
struct tile_strip {
  static constexpr int Q = COLS / 4;
  static constexpr int TOTAL = ROWS * Q;
  static constexpr int EACH = (TOTAL + THREADS - 1) / THREADS;
  float_4 held[EACH];

  TGC_DEVICE void fetch(const float* source, int stride) {
#pragma unroll
    for (int e = 0; e < EACH; e++) {
      int i = threadIdx.x + e * THREADS;
      if (TOTAL % THREADS == 0 || i < TOTAL)
        held[e] = tgc_load_vector<4>(source, (i / Q) * stride + (i % Q) * 4);
    }
  }
  template <int PITCH>
  TGC_DEVICE void put(float* tile) {
#pragma unroll
    for (int e = 0; e < EACH; e++) {
      int i = threadIdx.x + e * THREADS;
      if (TOTAL % THREADS == 0 || i < TOTAL)
        *reinterpret_cast<float_4*>(tile + (i / Q) * PITCH + (i % Q) * 4) = held[e];
    }
  }
};

// Both operands have K innermost. Rows in shared memory are an odd number of 16-byte words apart: a
// quarter warp's eight rows then lie in different banks.
template <int TM, int TN, int KC, int THREADS>
struct contract_rows {
  static constexpr int Q = KC / 4;
  static constexpr int PITCH = (Q | 1) * 4;
  static constexpr int PLACES = (TM / 4) * (TN / 4);
  static constexpr int GROUPS = THREADS / PLACES;
  static constexpr int OUTPUTS = TM * TN;
  static constexpr int TILE = (TM + TN) * PITCH;
  static constexpr int SHARED = 4 * (TILE > GROUPS * OUTPUTS ? TILE : GROUPS * OUTPUTS);

  static TGC_DEVICE void multiply(const float* a, const float* b, float* sums) {
    int place = threadIdx.x % PLACES, group = threadIdx.x / PLACES;
    int x = place % (TN / 4), y = place / (TN / 4);
    float total[4][4] = {};
    if (THREADS % PLACES == 0 || group < GROUPS) {
#pragma unroll
      for (int turn = 0; turn < (Q + GROUPS - 1) / GROUPS; turn++) {
        int q = turn * GROUPS + group;
        if (Q % GROUPS != 0 && q >= Q) break;
        float_4 row[4], column[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
          row[i] = *reinterpret_cast<const float_4*>(a + (y + i * (TM / 4)) * PITCH + q * 4);
          column[i] = *reinterpret_cast<const float_4*>(b + (x + i * (TN / 4)) * PITCH + q * 4);
        }
#pragma unroll
        for (int k = 0; k < 4; k++)
#pragma unroll
          for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
              total[i][j] = tgc_fma(row[i].at[k], column[j].at[k], total[i][j]);
      }
    }
    __syncthreads();
    if (THREADS % PLACES == 0 || group < GROUPS) {
#pragma unroll
      for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
          sums[group * OUTPUTS + (i * 4 + j) * PLACES + place] = total[i][j];
    }
    __syncthreads();
  }
  static TGC_DEVICE int row_of(int e) { return e % PLACES / (TN / 4) + e / PLACES / 4 * (TM / 4); }
  static TGC_DEVICE int column_of(int e) {
    return e % PLACES % (TN / 4) + e / PLACES % 4 * (TN / 4);
  }
  static TGC_DEVICE float output(const float* sums, int e) {
    float total = sums[e];
#pragma unroll
    for (int g = 1; g < GROUPS; g++) total += sums[g * OUTPUTS + e];
    return total;
  }
};

// Both operands have K outermost: a[k][m], b[k][n]. Output e is a float4 along n.
template <int TM, int TN, int K, int THREADS>
struct contract_columns {
  static constexpr int PLACES = (TM / 4) * (TN / 4);
  static constexpr int GROUPS = THREADS / PLACES;
  static constexpr int OUTPUTS = TM * TN / 4;
  static constexpr int TILE = (TM + TN) * K;
  static constexpr int SHARED = 4 * (TILE > GROUPS * TM * TN ? TILE : GROUPS * TM * TN);

  static TGC_DEVICE void multiply(const float* a, const float* b, float_4* sums) {
    int place = threadIdx.x % PLACES, group = threadIdx.x / PLACES;
    int x = place % (TN / 4), y = place / (TN / 4);
    float total[4][4] = {};
    if (THREADS % PLACES == 0 || group < GROUPS) {
#pragma unroll
      for (int turn = 0; turn < (K + GROUPS - 1) / GROUPS; turn++) {
        int k = turn * GROUPS + group;
        if (K % GROUPS != 0 && k >= K) break;
        float_4 row = *reinterpret_cast<const float_4*>(a + k * TM + y * 4);
        float_4 column = *reinterpret_cast<const float_4*>(b + k * TN + x * 4);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
          for (int j = 0; j < 4; j++)
            total[i][j] = tgc_fma(row.at[i], column.at[j], total[i][j]);
      }
    }
    __syncthreads();
    if (THREADS % PLACES == 0 || group < GROUPS) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        float_4 v = {{total[i][0], total[i][1], total[i][2], total[i][3]}};
        sums[group * OUTPUTS + i * PLACES + place] = v;
      }
    }
    __syncthreads();
  }
  static TGC_DEVICE int row_of(int e) { return e % PLACES / (TN / 4) * 4 + e / PLACES; }
  static TGC_DEVICE int column_of(int e) { return e % PLACES % (TN / 4) * 4; }
  static TGC_DEVICE float_4 output(const float_4* sums, int e) {
    float_4 total = sums[e];
#pragma unroll
    for (int g = 1; g < GROUPS; g++)
#pragma unroll
      for (int i = 0; i < 4; i++) total.at[i] += sums[g * OUTPUTS + e].at[i];
    return total;
  }
};
