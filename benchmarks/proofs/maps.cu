// MAP and COL skeletons and the full sum, in every shape that a generator could choose, on an 8192 x 8192 float32
// array. One macro line per variant; benchmarks/proofs/sweep.py writes those lines and times them.
//
//   MAP   out = f(in)            read 256 MiB, write 256 MiB
//   COL   out[c] = sum_r in[r,c] read 256 MiB; partials of fixed row ranges, then a second kernel sums them
//   SUM   out = sum of all       read 256 MiB; one partial a block, then one block sums them

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

// One tile: UNROLL float4s a thread, THREADS float4s apart; every load is issued before the first is used.
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

#define MAP_ONCE(NAME, OP, N, UNROLL, THREADS, STREAM)                                      \
    typedef map_params NAME##_params;                                                       \
    __device__ void NAME##_stage(int virtual_block, const NAME##_params& p, char* smem) {   \
        map_tile<OP, UNROLL, THREADS, STREAM>(virtual_block, N, p);                         \
    }                                                                                       \
    TGC_KERNEL(NAME, THREADS)

// A fixed grid of BLOCKS blocks walks over the tiles.
#define MAP_STRIDE(NAME, OP, N, UNROLL, THREADS, BLOCKS)                                    \
    typedef map_params NAME##_params;                                                       \
    __device__ void NAME##_stage(int virtual_block, const NAME##_params& p, char* smem) {   \
        for (int tile = virtual_block; tile < (N + THREADS * UNROLL * 4 - 1) / (THREADS * UNROLL * 4); \
             tile += BLOCKS)                                                                \
            map_tile<OP, UNROLL, THREADS, false>(tile, N, p);                               \
    }                                                                                       \
    TGC_KERNEL(NAME, THREADS)

// A full sum: block b adds tiles b, b + BLOCKS, ... UNROLL independent partial sums a thread, combined in fixed
// order.
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

#define SUM_ALL(NAME, N, UNROLL, THREADS, BLOCKS)                                           \
    typedef map_params NAME##_params;                                                       \
    __device__ void NAME##_stage(int virtual_block, const NAME##_params& p, char* smem) {   \
        edge_early();                                                                   \
        edge_late();                                                                    \
        sum_blocks<N, UNROLL, THREADS, BLOCKS>(virtual_block, p, smem);                     \
    }                                                                                       \
    TGC_KERNEL(NAME, THREADS)

// The second stage of a full sum: one block of 1024 over COUNT partials.
#define SUM_PARTIALS(NAME, COUNT)                                                           \
    typedef map_params NAME##_params;                                                       \
    __device__ void NAME##_stage(int virtual_block, const NAME##_params& p, char* smem) {   \
        float sum = 0.0f;                                                                   \
        edge_early();                                                                   \
        edge_late();                                                                    \
        _Pragma("unroll") for (int i = threadIdx.x; i < COUNT; i += 1024) sum += tgc_load(p.in, i); \
        sum = block_reduce<1024>(sum, tgc_sum_op(), reinterpret_cast<float*>(smem));         \
        if (threadIdx.x == 0) tgc_store(p.out, 0, sum);                                     \
    }                                                                                       \
    TGC_KERNEL(NAME, 1024)

// COL: a warp owns 128 columns (a float4 a lane), the block's warps take turns at the rows of one of SPLITS row
// ranges; UNROLL rows in flight a thread.
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

#define COL_SUM(NAME, ROWS, COLUMNS, UNROLL, THREADS, SPLITS)                               \
    typedef map_params NAME##_params;                                                       \
    __device__ void NAME##_stage(int virtual_block, const NAME##_params& p, char* smem) {   \
        edge_early();                                                                   \
        edge_late();                                                                    \
        col_sum<ROWS, COLUMNS, UNROLL, THREADS, SPLITS>(virtual_block, p, smem);            \
    }                                                                                       \
    TGC_KERNEL(NAME, THREADS)

// The second stage of COL: SPLITS partials a column, a thread a column.
#define COL_PARTIALS(NAME, COLUMNS, SPLITS)                                                 \
    typedef map_params NAME##_params;                                                       \
    __device__ void NAME##_stage(int virtual_block, const NAME##_params& p, char* smem) {   \
        int column = virtual_block * 64 + threadIdx.x;                                      \
        float part[SPLITS], sum = 0.0f;                                                     \
        edge_early();                                                                   \
        edge_late();                                                                    \
        _Pragma("unroll") for (int s = 0; s < SPLITS; s++) part[s] = tgc_load(p.in, s * COLUMNS + column); \
        _Pragma("unroll") for (int s = 0; s < SPLITS; s++) sum += part[s];                  \
        tgc_store(p.out, column, sum);                                                      \
    }                                                                                       \
    TGC_KERNEL(NAME, 64)

// The same for many partials: a block takes 32 columns, its 8 warps take turns at the partials.
#define COL_PARTIALS_WIDE(NAME, COLUMNS, SPLITS)                                            \
    typedef map_params NAME##_params;                                                       \
    __device__ void NAME##_stage(int virtual_block, const NAME##_params& p, char* smem) {   \
        int warp = threadIdx.x / 32, column = virtual_block * 32 + threadIdx.x % 32;        \
        float part[SPLITS / 8], sum = 0.0f;                                                 \
        edge_early();                                                                       \
        edge_late();                                                                        \
        _Pragma("unroll") for (int s = 0; s < SPLITS / 8; s++)                              \
            part[s] = tgc_load(p.in, (s * 8 + warp) * COLUMNS + column);                    \
        _Pragma("unroll") for (int s = 0; s < SPLITS / 8; s++) sum += part[s];              \
        float* slots = reinterpret_cast<float*>(smem);                                      \
        slots[threadIdx.x] = sum;                                                           \
        __syncthreads();                                                                    \
        if (warp == 0) {                                                                    \
            _Pragma("unroll") for (int w = 1; w < 8; w++) sum += slots[w * 32 + threadIdx.x]; \
            tgc_store(p.out, column, sum);                                                  \
        }                                                                                   \
    }                                                                                       \
    TGC_KERNEL(NAME, 256)
