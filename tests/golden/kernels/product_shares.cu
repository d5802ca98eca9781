// contract 1 x 768 x 3072 x 8192 by wgmma, tiles of 128 x 256 x 64, stream-K 132, 38654705664 FLOPs: matmul.
// Stores matmul (768, 3072) bfloat16.
// Grid 132 x 256 threads, 91226112 bytes moved at least.
TGC_STAGE(contract_matmul_a040ac8023,
  tgc_tensor_map map_in0;
  tgc_tensor_map map_in1;
  tgc_bfloat16* out0;
  float* partial0;
  unsigned long long* words0;
  const tgc_bfloat16* in0;
  const tgc_bfloat16* in1;
) {
  char* const shared_a = smem;
  char* const shared_b = smem + 4 * 16384;
  unsigned long long* const full = reinterpret_cast<unsigned long long*>(smem + 229376);
  unsigned long long* const empty = full + 4;
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < 4; slot++) {
      tgc_barrier_init(full + slot, 1);
      tgc_barrier_init(empty + slot, 8);
    }
    tgc_barrier_fence();
  }
  __syncthreads();
  // The turns of the ring that the block has: a slice of a tile, or some that are left of several.
  auto begin_of = [&](int helper) { return helper * 70 + (helper < 48 ? helper : 48); };
  const int number = 132 - 1 - virtual_block, helper = number - 72;
  const bool slice = helper < 0;
  const int length = slice ? 128 : 59;  // turns of a tile, or of what is left of it
  const int first_turn = slice ? 0 : 69;
  const int share_begin = slice ? number % 72 * 128 + number / 72 * 69 : begin_of(helper);
  const int share_end = slice ? share_begin + 69 : begin_of(helper + 1);
  if (threadIdx.x < 128) {
    tgc_registers_give<40>();
    const int producer = threadIdx.x / 32;  // of the boxes with this number modulo all producers
    if (threadIdx.x % 32 == 0 && producer < 4) {
      tgc_tma_prefetch(&p.map_in0);
      tgc_tma_prefetch(&p.map_in1);
      int slot = 0;
      unsigned parity = 1;
#pragma unroll 1
      for (int block = share_begin; block < share_end; block = (block / length + 1) * length) {
        const int unit = block / length;  // the tile, of those of all batches
        const int tile_index = unit % 72;
        const int batch = 0;
        const int k_slice = unit / 72;
        const int band = tile_index / 72 * 6;
        const int band_rows = 6 - band < 6 ? 6 - band : 6;
        const int tile_m = band + tile_index % 72 % band_rows;
        const int tile_n = tile_index % 72 / band_rows;
        const int k_begin = (first_turn + block % length) * 64;
        const int turn_end = share_end - unit * length < length ? share_end - unit * length : length;
        const int k_unclamped = (first_turn + turn_end) * 64;
        const int k_end = k_unclamped < 8192 ? k_unclamped : 8192;
#pragma unroll 1
        for (int k_first = k_begin; k_first < k_end; k_first += 64) {
          tgc_barrier_wait(empty + slot, parity);
          if (producer == 0) tgc_barrier_expect(full + slot, 49152);
#pragma unroll
          for (int box = 0; box < 2; box++) {
            if (producer == box % 4) {
              const int at[2] = {tile_m * 128 + box * 64, k_first};
              tgc_tma_load(shared_a + slot * 16384 + box * 8192, &p.map_in0, full + slot, at);
            }
          }
#pragma unroll
          for (int box = 0; box < 4; box++) {
            if (producer == (box + 2) % 4) {
              const int at[2] = {tile_n * 256 + box * 64, k_first};
              tgc_tma_load(shared_b + slot * 32768 + box * 8192, &p.map_in1, full + slot, at);
            }
          }
          slot++;
          if (slot == 4) {
            slot = 0;
            parity ^= 1;
          }
        }
      }
    }
  } else {
    tgc_registers_take<232>();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 - 4, group = threadIdx.x / 128 - 1;
    const int group_m = group * 64, group_n = 0;
    const int warp_m = group_m + warp % 4 * 16, warp_n = group_n;
    const unsigned long long matrix_a =
        tgc_wgmma_descriptor(shared_a + group_m / 64 * 8192, 8192, 1024, 8);
    const unsigned long long matrix_b =
        tgc_wgmma_descriptor(shared_b + group_n / 64 * 8192, 8192, 1024, 8);
    int turn = 0;  // of the ring
    // Each launch adds as much to each flag: 3, where nobody waits for the block's sums at once.
    const int own_flag = number * 8 + warp;
    if (number < 72 && lane == 0)
      tgc_grid_flag_publish(p.words0, own_flag, tgc_grid_flag(p.words0, own_flag) + 3);
    __syncwarp();
#pragma unroll 1
    for (int block = share_begin; block < share_end; block = (block / length + 1) * length) {
      const int unit = block / length;  // the tile, of those of all batches
      const int tile_index = unit % 72;
      const int batch = 0;
      const int k_slice = unit / 72;
      const int band = tile_index / 72 * 6;
      const int band_rows = 6 - band < 6 ? 6 - band : 6;
      const int tile_m = band + tile_index % 72 % band_rows;
      const int tile_n = tile_index % 72 / band_rows;
      const int k_begin = (first_turn + block % length) * 64;
      const int turn_end = share_end - unit * length < length ? share_end - unit * length : length;
      const int k_unclamped = (first_turn + turn_end) * 64;
      const int k_end = k_unclamped < 8192 ? k_unclamped : 8192;
      float sum[1][128];
      int slot = turn % 4;
      unsigned parity = turn / 4 % 2;
#pragma unroll 1
      for (int k_first = k_begin; k_first < k_end; k_first += 64) {
        tgc_barrier_wait(full + slot, parity);
        tgc_wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; step++)
          tgc_wgmma_bf16<256, true, true>(
              sum[0], matrix_a + (slot * 16384 + step * 2048) / 16,
              matrix_b + (slot * 32768 + step * 2048) / 16, step > 0 || k_first > k_begin);
        tgc_wgmma_commit();
        tgc_wgmma_wait<1>();
        if (k_first > k_begin && lane == 0)
          tgc_barrier_arrive(empty + (slot > 0 ? slot : 4) - 1);
        turn++;
        slot++;
        if (slot == 4) {
          slot = 0;
          parity ^= 1;
        }
      }
      tgc_wgmma_wait<0>();
      if (lane == 0) tgc_barrier_arrive(empty + (slot > 0 ? slot : 4) - 1);
      if (number >= 72) {
        const int piece = unit - share_begin / length;
        const int at = slice ? number - 72 : 72 - 72 + helper * 3 + piece;
#pragma unroll
        for (int q = 0; q < 32; q++) {
          tgc_vector<float, 4> sums;
#pragma unroll
          for (int v = 0; v < 4; v++) sums.at[v] = sum[0][q * 4 + v];
          tgc_store_vector(p.partial0, ((at * 32 + q) * 256 + threadIdx.x - 128) * 4, sums);
        }
        const bool last = (unit + 1) * length >= share_end;
        __syncwarp();
        if (lane == 0)
          tgc_grid_flag_publish(p.words0, own_flag, tgc_grid_flag(p.words0, own_flag) + (last ? 3 - piece : 1));
        continue;
      }
      const unsigned long long seen = tgc_grid_flag(p.words0, own_flag) - 3;  // before this launch
      // The helper that has the first turn of what is left of the tile.
      const int rest = unit * 59;
      int next_helper = rest < 48 * (71) ? rest / (71) : (rest - 48) / 70;
#pragma unroll 1
      for (int other = 1;; other++) {
        int from, at, piece = 2;
        if (other < 1) {
          from = other * 72 + unit;
          at = from - 72;
        } else {
          if (begin_of(next_helper) >= rest + 59) break;
          piece = unit - begin_of(next_helper) / 59;
          from = 72 + next_helper;
          at = 72 - 72 + next_helper * 3 + piece;
          next_helper++;
        }
        tgc_grid_flag_await(p.words0, from * 8 + warp, seen + piece + 1);
#pragma unroll
        for (int q = 0; q < 32; q++) {
          const tgc_vector<float, 4> sums = tgc_load_vector<4>(
              p.partial0, ((at * 32 + q) * 256 + threadIdx.x - 128) * 4);
#pragma unroll
          for (int v = 0; v < 4; v++) sum[0][q * 4 + v] += sums.at[v];
        }
      }
      // A warp's 16 x columns sums in shared memory. Groups of 8 columns are exchanged by row, so that rows
      // meet different banks, and the halves of the last four groups, so that a row's strips do.
      float* const staged = reinterpret_cast<float*>(smem + 196608) + warp * 1024;
#pragma unroll 4
      for (int part = 0; part < 4; part++) {
#pragma unroll
        for (int i = 0; i < 1; i++)
#pragma unroll
          for (int c = 0; c < 4; c++) {
            if (part != i * 4 + c) continue;  // sums are registers: their indices are constants
#pragma unroll
            for (int j = 0; j < 8; j++)
#pragma unroll
              for (int half = 0; half < 2; half++) {
                tgc_vector<float, 2> pair;
                pair.at[0] = sum[i][(c * 8 + j) * 4 + half * 2];
                pair.at[1] = sum[i][(c * 8 + j) * 4 + half * 2 + 1];
                const int at = (j ^ lane / 4 % 8) * 8 + lane % 4 * 2;
                *reinterpret_cast<tgc_vector<float, 2>*>(
                    staged + (half * 8 + lane / 4) * 64 + (at ^ at / 32 * 4)) = pair;
              }
          }
        __syncwarp();
#pragma unroll 4
        for (int turn = 0; turn < 4; turn++) {
          const int e = turn * 32 + lane;
          const int row = e / (8), column = e % 8;
          const int m = tile_m * 128 + warp_m + part / 4 * 64 + row;
          const int first = tile_n * 256 + warp_n + part % 4 * 64;
          const int strip = first / 8 + column;
          {
            float totals[8];
#pragma unroll
            for (int v = 0; v < 8; v += 4) {
              const int at = column * 8 + v ^ row % 8 * 8;
              const tgc_vector<float, 4> several =
                  *reinterpret_cast<const tgc_vector<float, 4>*>(
                      staged + row * 64 + (at ^ at / 32 * 4));
#pragma unroll
              for (int q = 0; q < 4; q++) totals[v + q] = several.at[q];
            }
            float out0x8[8];
#pragma unroll
            for (int v = 0; v < 8; v++) {
              const float total = totals[v];
              const float rounded0 = tgc_cast<tgc_bfloat16>(total);
              out0x8[v] = total;
            }
            tgc_store_vector(p.out0, m * 3072 + strip * 8, tgc_rounded<tgc_bfloat16>(out0x8));
          }
        }
        __syncwarp();
      }
    }
  }
}
