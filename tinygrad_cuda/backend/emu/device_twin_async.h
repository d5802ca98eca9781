// What sm_90 does while a thread goes on, in plain C++: copies of bytes and of tensor boxes (TMA) that
// an mbarrier counts, products of a warpgroup (wgmma), barriers of some warps and of a cluster.
// tma.cuh and grid_reduce_device.cuh include this; device_twin.h says when an asynchronous operation
// takes effect.
//
// These units see shared memory through a view of their own, the async proxy. What threads have
// stored gets there by a proxy fence; what TMA brings is in both.

#pragma once

// What a launch did wrong: runtime.py has a sentence for each.
enum { TGC_EMU_BARRIER_UNSET, TGC_EMU_BARRIER_UNFENCED, TGC_EMU_BARRIER_ARRIVALS,
       TGC_EMU_BLOCK_ENDED, TGC_EMU_LOAD_IN_FLIGHT, TGC_EMU_WGMMA_UNFENCED,
       TGC_EMU_WGMMA_DESCRIPTOR, TGC_EMU_NAMED_BARRIER, TGC_EMU_MAP_AXES };

constexpr int TGC_EMU_LOADS = 1024, TGC_EMU_STORES = 1024, TGC_EMU_PRODUCTS = 64;  // in flight

// backend/emu/tensor_map.py writes these words: address; element bytes, rank << 8, swizzle << 16;
// 5 sizes in elements, innermost first; 4 strides in bytes, from the second axis; 5 box sizes. Of
// an im2col map (bit 24): channels and pixels of a box, then of each spatial axis lower and upper
// corner of the pixel box, 16 bits each, and the step.
struct tgc_emu_map {
  unsigned long long base, form, size[5], stride[4], box[5];
  int element() const { return int(form & 0xff); }
  int rank() const { return int(form >> 8 & 0xff); }
  int swizzle() const { return int(form >> 16 & 0xff); }
  bool pixels() const { return form >> 24 & 1; }
  int lower(int axis) const { return (short)(box[2 + axis] & 0xffff); }  // of spatial axes, from 0
  int upper(int axis) const { return (short)(box[2 + axis] >> 16 & 0xffff); }
  int step(int axis) const { return int(box[2 + axis] >> 32); }
  int row_bytes() const { return int(box[0]) * element(); }
  int rows() const {
    int count = 1;
    for (int axis = 1; axis < (pixels() ? 2 : rank()); axis++) count *= int(box[axis]);
    return count;
  }
};

// offset: in the block's shared memory; tap: of a window, added to the pixels' positions
struct tgc_emu_box { tgc_emu_map map; int at[5], rank; long long offset; int tap[3]; };
struct tgc_emu_load {
  tgc_emu_box box;
  unsigned long long* barrier;
  const char* bytes;  // of a copy without a map, to the box's offset
  int count;
};
struct tgc_emu_store { tgc_emu_box box; int thread; unsigned group; };

enum { TGC_EMU_BF16, TGC_EMU_FP16, TGC_EMU_TF32 };

// What a lane brings to a product of its warpgroup.
struct tgc_emu_wgmma_lane {
  float* d;
  const unsigned* a;  // registers, or null
  unsigned long long a_descriptor, b_descriptor;
  int n, format;
  bool a_mn_major, b_mn_major, accumulate;
};
struct tgc_emu_product {
  tgc_emu_wgmma_lane one;  // of the first lane
  float* d[32];
  const unsigned* a[32];
  unsigned group;
};
struct tgc_emu_queue {     // of a warp, oldest first
  tgc_emu_product products[TGC_EMU_PRODUCTS];
  int count;
  unsigned groups;
  bool fenced;             // since the last wait
};

struct tgc_emu_named { int arrived, expected; unsigned generation; };

static struct {
  unsigned long long serial;
  int load_count, store_count;
  tgc_emu_load loads[TGC_EMU_LOADS];
  tgc_emu_store stores[TGC_EMU_STORES];
  unsigned store_groups[TGC_EMU_THREADS];
  tgc_emu_queue queues[TGC_EMU_THREADS / 32];
  tgc_emu_named named[TGC_EMU_CLUSTER][16];
  bool unfenced[TGC_EMU_CLUSTER];      // an mbarrier is set and not yet fenced
  int cluster_arrived;
  unsigned cluster_generation, cluster_token[TGC_EMU_THREADS];
  char view[TGC_EMU_SHARED];           // the async proxy's shared memory
} tgc_emu_async;

TGC_COLD void tgc_emu_fail_async(int what) { tgc_emu_fail(TGC_EMU_ASYNC, what); }

static void tgc_emu_async_moment();
static void tgc_emu_async_ended();
static void tgc_emu_async_begin() {
  tgc_emu_state* m = tgc_emu;
  auto& async = tgc_emu_async;
  if (async.serial == m->serial) return;
  async.serial = m->serial;
  async.load_count = async.store_count = async.cluster_arrived = 0;
  memset(async.store_groups, 0, sizeof async.store_groups);
  for (auto& queue : async.queues) queue.count = queue.groups = queue.fenced = 0;
  memset(async.named, 0, sizeof async.named);
  memset(async.unfenced, 0, sizeof async.unfenced);
  memset(async.view, 0xff, m->cluster * m->shared_stride);
  m->moment = tgc_emu_async_moment;
  m->ended = tgc_emu_async_ended;
}

static char* tgc_emu_generic(int rank, long long offset) {
  return tgc_emu->shared_base + rank * tgc_emu->shared_stride + offset;
}
static __forceinline__ char* tgc_emu_proxy(int rank, long long offset) {
  return tgc_emu_async.view + rank * tgc_emu->shared_stride + offset;
}
static void tgc_emu_proxy_fence() {
  tgc_emu_async_begin();
  memcpy(tgc_emu_proxy(tgc_emu_rank, 0), tgc_emu_smem, tgc_emu->launch->shared);
}

// --------------------------------------------------------------------------------------- mbarriers
// A word: arrivals that are missing, and of a phase in all, 20 bits each; the phase; bytes that are
// missing, as a signed number. Shared memory begins as all ones, which no mbarrier is.

struct tgc_emu_mbarrier {
  long long missing, count, phase, bytes;
};
static tgc_emu_mbarrier tgc_emu_mbarrier_read(const unsigned long long* barrier) {
  unsigned long long word = *barrier;
  if (word == ~0ull) tgc_emu_fail_async(TGC_EMU_BARRIER_UNSET);
  return {(long long)(word & 0xfffff), (long long)(word >> 20 & 0xfffff), (long long)(word >> 40 & 1),
          (long long)word >> 41};
}
static void tgc_emu_mbarrier_write(unsigned long long* barrier, tgc_emu_mbarrier state) {
  if (state.missing == 0 && state.bytes == 0) {
    state.phase ^= 1;
    state.missing = state.count;
  }
  *barrier = (unsigned long long)(state.missing | state.count << 20 | state.phase << 40) |
             (unsigned long long)state.bytes << 41;
  tgc_emu_moved();
}
static void tgc_emu_mbarrier_init(unsigned long long* barrier, int count) {
  tgc_emu_async_begin();
  tgc_emu_check_shared(barrier, 8, 8, true);
  tgc_emu_async.unfenced[tgc_emu_rank] = true;
  tgc_emu_mbarrier_write(barrier, {count, count, 0, 0});
}
static void tgc_emu_mbarrier_fence() {
  tgc_emu_async_begin();
  tgc_emu_async.unfenced[tgc_emu_rank] = false;
}
// `bytes` more are to come in this phase, then one arrives.
static void tgc_emu_mbarrier_arrive(unsigned long long* barrier, int bytes) {
  tgc_emu_mbarrier state = tgc_emu_mbarrier_read(barrier);
  if (state.missing == 0) tgc_emu_fail_async(TGC_EMU_BARRIER_ARRIVALS);
  state.missing--;
  state.bytes += bytes;
  tgc_emu_mbarrier_write(barrier, state);
}
static void tgc_emu_mbarrier_arrive_remote(unsigned long long* barrier, int rank) {
  if (tgc_emu->blocks[rank].live == 0) tgc_emu_fail_async(TGC_EMU_BLOCK_ENDED);
  tgc_emu_mbarrier_arrive(
      (unsigned long long*)tgc_emu_generic(rank, (char*)barrier - tgc_emu_smem), 0);
}

// Shared memory of another block of the cluster.
static const char* tgc_emu_remote(const void* shared, int bytes, int rank) {
  tgc_emu_check_shared(shared, bytes, bytes, false);
  if (tgc_emu->blocks[rank].live == 0) tgc_emu_fail_async(TGC_EMU_BLOCK_ENDED);
  return tgc_emu_generic(rank, (const char*)shared - tgc_emu_smem);
}

// --------------------------------------------------------------------------------- boxes of tensors

// Where the 16 bytes at an offset lie under a swizzle of 32, 64 or 128 bytes (1, 2, 3; or none, 0):
// rows of 128 bytes exchange their pieces, by the row's number modulo 2, 4 or 8.
static __forceinline__ long long tgc_emu_swizzled(long long offset, int swizzle) {
  return offset ^ ((offset >> 7 & ((1 << swizzle) - 1)) << 4);
}

// The same for each pixel, from the position of the first one along rows, columns and images.
template <class Row> static void tgc_emu_each_pixel(const tgc_emu_box& box, Row row) {
  const tgc_emu_map& map = box.map;
  int last = map.rank() - 1, at[5];
  for (int axis = 1; axis <= last; axis++) at[axis] = box.at[axis];
  for (int number = 0; number < map.rows(); number++) {
    bool inside = true;
    long long offset = 0;
    for (int axis = 1; axis <= last; axis++) {
      long long position = at[axis] + (axis < last ? box.tap[axis - 1] : 0);
      inside = inside && position >= 0 && position < (long long)map.size[axis];
      offset += position * (long long)map.stride[axis - 1];
    }
    row(number, inside, offset);
    int axis = 1;
    for (; axis < last; axis++) {
      at[axis] += map.step(axis - 1);
      if (at[axis] < (long long)map.size[axis] + map.upper(axis - 1)) break;
      at[axis] = map.lower(axis - 1);
    }
    if (axis == last) at[last]++;
  }
}
// For each row of the box: its number, whether it is inside the tensor, and its byte offset there.
template <class Row> static void tgc_emu_each_row(const tgc_emu_box& box, Row row) {
  const tgc_emu_map& map = box.map;
  if (map.pixels()) return tgc_emu_each_pixel(box, row);
  for (int number = 0; number < map.rows(); number++) {
    bool inside = true;
    long long offset = 0, rest = number;
    for (int axis = 1; axis < map.rank(); axis++) {
      long long at = box.at[axis] + rest % (long long)map.box[axis];
      rest /= (long long)map.box[axis];
      inside = inside && at >= 0 && at < (long long)map.size[axis];
      offset += at * (long long)map.stride[axis - 1];
    }
    row(number, inside, offset);
  }
}
// The bytes of a row that are inside the tensor: their global address, and where in the row.
static char* tgc_emu_row_inside(const tgc_emu_box& box, long long offset, int* first, int* bytes,
                                bool write) {
  const tgc_emu_map& map = box.map;
  long long low = box.at[0] < 0 ? -(long long)box.at[0] : 0;
  long long high = (long long)map.size[0] - box.at[0];
  if (high > (long long)map.box[0]) high = (long long)map.box[0];
  *first = int(low * map.element());
  *bytes = high > low ? int((high - low) * map.element()) : 0;
  long long start = offset + (box.at[0] + low) * map.element();
  if (*bytes == 0) return nullptr;
  tgc_emu_check((char*)map.base, start, 1, 1, write);
  tgc_emu_check((char*)map.base, start + *bytes - 1, 1, 1, write);
  return (char*)map.base + start;
}

static void tgc_emu_load_now(const tgc_emu_load& load) {
  const tgc_emu_box& box = load.box;
  int bytes = box.map.row_bytes();
  auto bring = [&](int number, bool inside, long long offset) {
    char row[2048];
    memset(row, 0, bytes);
    int first, count;
    const char* from = inside ? tgc_emu_row_inside(box, offset, &first, &count, false) : nullptr;
    if (from) memcpy(row + first, from, count);
    for (int piece = 0; piece < bytes; piece += 16) {
      long long to = tgc_emu_swizzled(box.offset + number * bytes + piece, box.map.swizzle());
      memcpy(tgc_emu_generic(box.rank, to), row + piece, 16);
      memcpy(tgc_emu_proxy(box.rank, to), row + piece, 16);
    }
  };
  if (load.bytes) {
    memcpy(tgc_emu_generic(box.rank, box.offset), load.bytes, load.count);
    memcpy(tgc_emu_proxy(box.rank, box.offset), load.bytes, load.count);
  } else {
    tgc_emu_each_row(box, bring);
  }
  tgc_emu_mbarrier state = tgc_emu_mbarrier_read(load.barrier);
  state.bytes -= load.count;
  tgc_emu_mbarrier_write(load.barrier, state);
}
static void tgc_emu_load_arrive(int number) {
  auto& async = tgc_emu_async;
  tgc_emu_load load = async.loads[number];
  async.loads[number] = async.loads[--async.load_count];
  tgc_emu_load_now(load);
}

static tgc_emu_box tgc_emu_box_of(const void* shared, const void* map, const int* at, int axes,
                                  bool write) {
  tgc_emu_async_begin();
  tgc_emu_box box = {};
  memcpy(&box.map, map, sizeof box.map);
  if (box.map.rank() != axes) tgc_emu_fail_async(TGC_EMU_MAP_AXES);
  for (int axis = 0; axis < axes; axis++) box.at[axis] = at[axis];
  tgc_emu_check_shared(shared, box.map.row_bytes() * box.map.rows(), 128, write);
  box.offset = (char*)shared - tgc_emu_smem;
  box.rank = tgc_emu_rank;
  return box;
}

// Takes effect now, or when its barrier is waited for, or by chance.
static void tgc_emu_load_issue(const tgc_emu_load& load) {
  auto& async = tgc_emu_async;
  int rank = load.box.rank, moment = tgc_emu->copy_moment;
  if (tgc_emu->blocks[rank].live == 0) tgc_emu_fail_async(TGC_EMU_BLOCK_ENDED);
  tgc_emu_mbarrier_read(load.barrier);
  if (moment == TGC_EMU_AT_WAIT) {
    memset(tgc_emu_generic(rank, load.box.offset), 0xff, load.count);
    memset(tgc_emu_proxy(rank, load.box.offset), 0xff, load.count);
  }
  bool now = moment == TGC_EMU_BY_CHANCE && tgc_emu_random(2);
  if (now || moment == TGC_EMU_AT_ISSUE || async.load_count == TGC_EMU_LOADS)
    tgc_emu_load_now(load);
  else async.loads[async.load_count++] = load;
}
static void tgc_emu_bulk_load(void* shared, const void* from, int count,
                              unsigned long long* barrier) {
  tgc_emu_async_begin();
  tgc_emu_check_shared(shared, count, 16, true);
  if (tgc_emu_async.unfenced[tgc_emu_rank]) tgc_emu_fail_async(TGC_EMU_BARRIER_UNFENCED);
  tgc_emu_load load = {{}, barrier, (const char*)from, count};
  load.box.offset = (char*)shared - tgc_emu_smem;
  load.box.rank = tgc_emu_rank;
  tgc_emu_load_issue(load);
}

// To the same offset of each block of the set, counted by the barrier at the same offset there.
// `taps`: where a window's tap lies from its first pixel; null of boxes.
static void tgc_emu_tma_load(void* shared, const void* map, unsigned long long* barrier,
                             const int* at, int axes, unsigned blocks, const int* taps = nullptr) {
  tgc_emu_load load = {tgc_emu_box_of(shared, map, at, axes, true), nullptr, nullptr, 0};
  if (load.box.map.pixels() != (taps != nullptr)) tgc_emu_fail_async(TGC_EMU_MAP_AXES);
  for (int axis = 0; taps && axis < axes - 2; axis++) load.box.tap[axis] = taps[axis];
  tgc_emu_check_shared(barrier, 8, 8, true);
  if (tgc_emu_async.unfenced[tgc_emu_rank]) tgc_emu_fail_async(TGC_EMU_BARRIER_UNFENCED);
  load.count = load.box.map.row_bytes() * load.box.map.rows();
  for (int rank = 0; rank < tgc_emu->cluster; rank++) {
    if (!(blocks >> rank & 1)) continue;
    load.box.rank = rank;
    load.barrier = (unsigned long long*)tgc_emu_generic(rank, (char*)barrier - tgc_emu_smem);
    tgc_emu_load_issue(load);
  }
}

// Whether the phase of this parity is complete; if not, what the barrier counts takes effect now, at
// the latest.
static bool tgc_emu_mbarrier_done(unsigned long long* barrier, unsigned parity) {
  tgc_emu_async_begin();
  tgc_emu_check_shared(barrier, 8, 8, false);
  if (tgc_emu_mbarrier_read(barrier).phase != parity) return true;
  if (tgc_emu->copy_moment == TGC_EMU_BY_CHANCE && tgc_emu_random(4)) return false;
  for (int number = tgc_emu_async.load_count - 1; number >= 0; number--)
    if (tgc_emu_async.loads[number].barrier == barrier) tgc_emu_load_arrive(number);
  return tgc_emu_mbarrier_read(barrier).phase != parity;
}
static bool tgc_emu_mbarrier_try_wait(unsigned long long* barrier, unsigned parity) {
  bool done = tgc_emu_mbarrier_done(barrier, parity);
  if (!done) tgc_emu_yield();
  return done;
}

static void tgc_emu_store_now(const tgc_emu_box& box) {
  int bytes = box.map.row_bytes();
  tgc_emu_each_row(box, [&](int number, bool inside, long long offset) {
    char row[2048];
    for (int piece = 0; piece < bytes; piece += 16) {
      long long from = tgc_emu_swizzled(box.offset + number * bytes + piece, box.map.swizzle());
      memcpy(row + piece, tgc_emu_proxy(box.rank, from), 16);
    }
    int first, count;
    char* to = inside ? tgc_emu_row_inside(box, offset, &first, &count, true) : nullptr;
    if (to) memcpy(to, row + first, count);
  });
  tgc_emu_moved();
}
static void tgc_emu_store_arrive(int number) {
  auto& async = tgc_emu_async;
  tgc_emu_box box = async.stores[number].box;
  async.store_count--;
  for (; number < async.store_count; number++) async.stores[number] = async.stores[number + 1];
  tgc_emu_store_now(box);
}
static void tgc_emu_tma_store(const void* map, const void* shared, const int* at, int axes) {
  auto& async = tgc_emu_async;
  tgc_emu_box box = tgc_emu_box_of(shared, map, at, axes, false);
  int moment = tgc_emu->copy_moment;
  if (moment == TGC_EMU_AT_ISSUE || (moment == TGC_EMU_BY_CHANCE && tgc_emu_random(2))) {
    tgc_emu_store_now(box);
    return;
  }
  if (async.store_count == TGC_EMU_STORES) tgc_emu_store_arrive(0);
  async.stores[async.store_count++] = {box, tgc_emu_self, async.store_groups[tgc_emu_self]};
}
static void tgc_emu_tma_commit() {
  tgc_emu_async_begin();
  tgc_emu_async.store_groups[tgc_emu_self]++;
}
static void tgc_emu_tma_wait(int newer) {
  tgc_emu_async_begin();
  auto& async = tgc_emu_async;
  int last = int(async.store_groups[tgc_emu_self]) - newer;
  for (int number = 0; number < async.store_count;) {
    const tgc_emu_store& store = async.stores[number];
    if (store.thread == tgc_emu_self && int(store.group) < last) tgc_emu_store_arrive(number);
    else number++;
  }
}

// --------------------------------------------------------------------------- products of warpgroups
// A warp computes its 16 of the 64 rows. Products are summed as tgc_mma_twin of mma.cuh says.

static __forceinline__ float tgc_emu_number(const char* bytes, int format) {
  unsigned short half;
  unsigned word;
  if (format == TGC_EMU_TF32) {
    memcpy(&word, bytes, 4);
    return __uint_as_float(word & 0xffffe000u);
  }
  memcpy(&half, bytes, 2);
  return format == TGC_EMU_BF16 ? __uint_as_float((unsigned)half << 16) : tgc_half_value(half);
}

// `rows` rows of k of an operand, from row `first` on; layouts as wgmma.cuh draws them. Element
// (row, k) goes to to[row * row_step + k * k_step].
TGC_HOT void tgc_emu_operand(unsigned long long descriptor, bool mn_major, int format, int rank,
                            int first, int rows, float* to, int row_step, int k_step) {
  int swizzle = int(4 - (descriptor >> 62)) % 4;  // 0 to 3: none, 32, 64, 128 bytes
  long long start = (descriptor & 0x3fff) << 4, leading = (descriptor >> 16 & 0x3fff) << 4;
  long long stride = (descriptor >> 32 & 0x3fff) << 4, shared = tgc_emu->launch->shared;
  if (descriptor >> 49 & 7) tgc_emu_fail_async(TGC_EMU_WGMMA_DESCRIPTOR);
  int bytes = format == TGC_EMU_TF32 ? 4 : 2, piece = 16 / bytes, width = 1 << swizzle;
  int outer = mn_major ? 16 : rows, inner = mn_major ? rows / piece : 2;  // lines and pieces of 16 B
  for (int line = 0; line < outer; line++) {
    for (int number = 0; number < inner; number++) {
      long long row = mn_major ? line : first + line;
      long long j = mn_major ? first / piece + number : number;
      long long at = start + row % 8 * width * 16;
      if (swizzle == 0 && mn_major) at += j * stride + row / 8 * leading;
      else if (swizzle == 0) at += row / 8 * stride + j * leading;
      else at += row / 8 * stride + j % width * 16 + j / width * leading;
      at = tgc_emu_swizzled(at, swizzle);
      if (at + 16 > shared) tgc_emu_fail_async(TGC_EMU_WGMMA_DESCRIPTOR);
      const char* from = tgc_emu_proxy(rank, at);
      for (int i = 0; i < piece; i++) {
        float value = tgc_emu_number(from + i * bytes, format);
        int r = mn_major ? number * piece + i : line, k = mn_major ? line : number * piece + i;
        to[r * row_step + k * k_step] = value;
      }
    }
  }
}
TGC_HOT void tgc_emu_registers(const tgc_emu_product& product, float (*to)[16]) {
  int format = product.one.format, packed = format == TGC_EMU_TF32 ? 1 : 2;
  for (int lane = 0; lane < 32; lane++)
    for (int r = 0; r < 4; r++)
      for (int i = 0; i < packed; i++) {
        const char* word = (const char*)&product.a[lane][r];
        int k = lane % 4 * packed + i + r / 2 * 4 * packed;
        to[lane / 4 + r % 2 * 8][k] = tgc_emu_number(word + i * 2, format);
      }
}
TGC_HOT void tgc_emu_product_now(const tgc_emu_product& product, int warp) {
  const tgc_emu_wgmma_lane& one = product.one;
  static float a[16][16], b[16][256];
  int first = warp * 32, rank = first / int(blockDim.x);
  int row = (first - rank * int(blockDim.x)) / 32 % 4 * 16;
  if (one.a) tgc_emu_registers(product, a);
  else tgc_emu_operand(one.a_descriptor, one.a_mn_major, one.format, rank, row, 16, a[0], 16, 1);
  tgc_emu_operand(one.b_descriptor, one.b_mn_major, one.format, rank, 0, one.n, b[0], 1, 256);
  for (int column = 0; column < one.n; column += 8) {
    tgc_emu_columns sums[16];
    if (one.format == TGC_EMU_TF32) tgc_emu_tile_product<8>(a, &b[0][column], 256, sums);
    else tgc_emu_tile_product<16>(a, &b[0][column], 256, sums);
    for (int lane = 0; lane < 32; lane++) {
      for (int i = 0; i < 4; i++) {
        float sum = sums[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
        float* d = product.d[lane] + column / 2 + i;
        *d = one.accumulate ? *d + sum : sum;
      }
    }
  }
  tgc_emu_moved();
}
// The warp's oldest product takes effect.
static void tgc_emu_product_arrive(int warp) {
  tgc_emu_queue& queue = tgc_emu_async.queues[warp];
  tgc_emu_product_now(queue.products[0], warp);
  queue.count--;
  for (int i = 0; i < queue.count; i++) queue.products[i] = queue.products[i + 1];
}
static void tgc_emu_wgmma(void* const* lanes) {
  tgc_emu_async_begin();
  int warp = tgc_emu_self / 32, moment = tgc_emu->copy_moment;
  tgc_emu_queue& queue = tgc_emu_async.queues[warp];
  if (!queue.fenced) tgc_emu_fail_async(TGC_EMU_WGMMA_UNFENCED);
  if (queue.count == TGC_EMU_PRODUCTS) tgc_emu_product_arrive(warp);
  tgc_emu_product& product = queue.products[queue.count++];
  product.group = queue.groups;
  product.one = *(tgc_emu_wgmma_lane*)lanes[0];
  for (int lane = 0; lane < 32; lane++) {
    const tgc_emu_wgmma_lane& own = *(tgc_emu_wgmma_lane*)lanes[lane];
    if (own.a_descriptor != product.one.a_descriptor || own.n != product.one.n ||
        own.b_descriptor != product.one.b_descriptor || own.format != product.one.format)
      tgc_emu_fail_async(TGC_EMU_WGMMA_DESCRIPTOR);
    product.d[lane] = own.d;
    product.a[lane] = own.a;
  }
  if (moment == TGC_EMU_AT_ISSUE || (moment == TGC_EMU_BY_CHANCE && tgc_emu_random(2)))
    while (queue.count) tgc_emu_product_arrive(warp);
}
static void tgc_emu_wgmma_fence(void* const*) {
  tgc_emu_async_begin();
  tgc_emu_async.queues[tgc_emu_self / 32].fenced = true;
}
static void tgc_emu_wgmma_commit(void* const*) {
  tgc_emu_async_begin();
  tgc_emu_async.queues[tgc_emu_self / 32].groups++;
}
static void tgc_emu_wgmma_wait(void* const* lanes) {
  tgc_emu_async_begin();
  int warp = tgc_emu_self / 32;
  tgc_emu_queue& queue = tgc_emu_async.queues[warp];
  int last = int(queue.groups) - *(int*)lanes[0];
  while (queue.count && int(queue.products[0].group) < last) tgc_emu_product_arrive(warp);
  queue.fenced = false;
}

// ------------------------------------------------------------- barriers of some warps and of clusters

static void tgc_emu_named_barrier(int id, int threads, bool waits) {
  tgc_emu_async_begin();
  tgc_emu_named& barrier = tgc_emu_async.named[tgc_emu_rank][id & 15];
  if (barrier.arrived == 0) barrier.expected = threads;
  if (barrier.expected != threads || threads % 32) tgc_emu_fail_async(TGC_EMU_NAMED_BARRIER);
  unsigned generation = barrier.generation;
  if (++barrier.arrived == threads) {
    barrier.arrived = 0;
    barrier.generation++;
    tgc_emu_moved();
  }
  while (waits && barrier.generation == generation) tgc_emu_yield();
}

static void tgc_emu_cluster_arrive() {
  tgc_emu_async_begin();
  tgc_emu_async.cluster_token[tgc_emu_self] = tgc_emu_async.cluster_generation;
  tgc_emu_async.cluster_arrived++;
}
static void tgc_emu_cluster_wait() {
  tgc_emu_async_begin();
  auto& async = tgc_emu_async;
  while (async.cluster_generation == async.cluster_token[tgc_emu_self]) {
    if (async.cluster_arrived < tgc_emu->live) {
      tgc_emu_yield();
      continue;
    }
    async.cluster_arrived = 0;
    async.cluster_generation++;
    tgc_emu_moved();
  }
}

// ------------------------------------------------------------------------------------------ moments

static void tgc_emu_async_moment() {
  auto& async = tgc_emu_async;
  if (tgc_emu->copy_moment != TGC_EMU_BY_CHANCE || tgc_emu_random(4)) return;
  if (async.load_count && tgc_emu_random(2)) tgc_emu_load_arrive(tgc_emu_random(async.load_count));
  if (async.store_count && tgc_emu_random(2)) tgc_emu_store_arrive(0);
  int warp = tgc_emu_random((tgc_emu->threads + 31) / 32);
  if (async.queues[warp].count) tgc_emu_product_arrive(warp);
}

// What a thread has not waited for before it ends is lost: its registers are gone, and its block's
// shared memory may be another's.
static void tgc_emu_async_ended() {
  auto& async = tgc_emu_async;
  async.queues[tgc_emu_self / 32].count = 0;
  for (int number = async.store_count - 1; number >= 0; number--) {
    if (async.stores[number].thread != tgc_emu_self) continue;
    async.store_count--;
    for (int i = number; i < async.store_count; i++) async.stores[i] = async.stores[i + 1];
  }
  if (tgc_emu->blocks[tgc_emu_rank].live > 1) return;
  for (int number = 0; number < async.load_count; number++)
    if (async.loads[number].box.rank == tgc_emu_rank) tgc_emu_fail_async(TGC_EMU_LOAD_IN_FLIGHT);
}
