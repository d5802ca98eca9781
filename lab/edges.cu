// Small dependent kernels for the cost and the rules of graph edges; TGC_EDGE (experiment.cuh) is set
// for the whole program. Any grid, blocks of 256, 1 KB read and written a block.
//
//   chain_step   out[i] = in[i + 37 blocks] + 1: reads what another block of its predecessor wrote.
//                In a chain, 132 blocks: 1.19 us with plain edges, 0.82 to 1.03 with others
//   join_step    out[i] = (a[i] + b[i]) / 2: two predecessors
//   slow_write   takes its time before it writes: a predecessor that its dependents can overtake
//   relay        reads and writes after its wait; stands between slow_write and a reader
//   read_early   reads before its wait: right only if the value is complete when it may start
//   read_waited  reads after its wait: always right
//   warm         reads a buffer on every multiprocessor, so that old values lie in the L1 caches

struct chain_step_params {
  const float* in;
  float* out;
  long long n;
};
__device__ void chain_step_stage(int virtual_block, const chain_step_params& p, char* smem) {
  int i = virtual_block * 256 + threadIdx.x, n = (int)p.n;
  edge_early();
  edge_late();
  tgc_store(p.out, i, tgc_load(p.in, (i + 37 * 256) % n) + 1.0f);
}
TGC_KERNEL(chain_step, 256)

struct join_step_params {
  const float* a;
  const float* b;
  float* out;
};
__device__ void join_step_stage(int virtual_block, const join_step_params& p, char* smem) {
  int i = virtual_block * 256 + threadIdx.x;
  edge_early();
  edge_late();
  tgc_store(p.out, i, 0.5f * (tgc_load(p.a, i) + tgc_load(p.b, i)));
}
TGC_KERNEL(join_step, 256)

TGC_DEVICE void wait_cycles(long long cycles) {
  long long start = clock64();
  while (clock64() - start < cycles) {
  }
}

struct slow_write_params {
  float* out;
  double value;
  long long cycles;
};
__device__ void slow_write_stage(int virtual_block, const slow_write_params& p, char* smem) {
  edge_early();
  edge_late();
  wait_cycles(p.cycles);
  tgc_store(p.out, virtual_block * 256 + threadIdx.x, (float)p.value);
}
TGC_KERNEL(slow_write, 256)

struct relay_params {
  const float* in;
  float* out;
};
__device__ void relay_stage(int virtual_block, const relay_params& p, char* smem) {
  int i = virtual_block * 256 + threadIdx.x;
  edge_early();
  edge_late();
  tgc_store(p.out, i, tgc_load(p.in, i));
}
TGC_KERNEL(relay, 256)

struct read_params {
  const float* in;
  float* out;
};
typedef read_params read_early_params;
__device__ void read_early_stage(int virtual_block, const read_early_params& p, char* smem) {
  int i = virtual_block * 256 + threadIdx.x;
  float value = tgc_load(p.in, i);
  tgc_grid_signal();
  tgc_grid_wait();
  tgc_store(p.out, i, value);
}
TGC_KERNEL(read_early, 256)

typedef read_params read_waited_params;
__device__ void read_waited_stage(int virtual_block, const read_waited_params& p, char* smem) {
  int i = virtual_block * 256 + threadIdx.x;
  tgc_grid_wait();
  tgc_store(p.out, i, tgc_load(p.in, i));
}
TGC_KERNEL(read_waited, 256)

// Every block reads the whole of a small buffer; the sum keeps the loads alive.
typedef read_params warm_params;
__device__ void warm_stage(int virtual_block, const warm_params& p, char* smem) {
  edge_early();
  edge_late();
  float sum = 0.0f;
  for (int i = 0; i < 8; i++) sum += tgc_load(p.in, i * 256 + threadIdx.x);
  if (sum == -1.0f) tgc_store(p.out, threadIdx.x, sum);
}
TGC_KERNEL(warm, 256)

// Every block reads the same 256 values early and writes its own copy.
typedef read_params read_shared_early_params;
__device__ void read_shared_early_stage(int virtual_block, const read_shared_early_params& p,
                                        char* smem) {
  float value = tgc_load(p.in, threadIdx.x);
  tgc_grid_wait();
  tgc_store(p.out, virtual_block * 256 + threadIdx.x, value);
}
TGC_KERNEL(read_shared_early, 256)
