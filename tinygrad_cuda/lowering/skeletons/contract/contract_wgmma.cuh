// contract_wgmma: C[m, n] = epilogue(sum over k of A(m, k) * B(k, n)) on the matrix units of sm_90a:
// wgmma m64nNk16 of 16-bit operands, sums in float32.
// As many blocks as run at one time compute tiles of tile_m x tile_n outputs, one after another, by
// two warpgroups. Tiles of A and B, 64 values of k, pass through a ring of `stages` slots as in
// contract_mma; here their 16-byte chunks are swizzled, so that wgmma reads them by descriptor,
// whichever axis is contiguous. The first tiles of the next outputs are copied during the epilogue.
//
//   turn t    copies of tile t are complete, barrier | products of t begin | copies of t + 2 begin |
//             products of t - 1 are complete: behind the next barrier their slot is free
//
// Bytes: A grid_n times and B grid_m times, most of them from L2; each output once.
//@ body
char* const shared_a = smem;
char* const shared_b = smem + @stages@ * @bytes_a@;
const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = threadIdx.x / 128;
const int group_m = group / @groups_n@ * @group_m@, group_n = group % @groups_n@ * @group_n@;
const int warp_m = group_m + warp % 4 * 16, warp_n = group_n;
// The 64 rows of A and the columns of B that the warpgroup multiplies first.
const unsigned long long matrix_a =
    tgc_wgmma_descriptor(shared_a + group_m / 64 * @block_bytes@, @block_bytes@, 1024, 8);
const unsigned long long matrix_b =
    tgc_wgmma_descriptor(shared_b + group_n / 64 * @block_bytes@, @block_bytes@, 1024, 8);
@declare@

auto begin = [&](int block) {  // the first copies for a tile of outputs
  @fetches@
  @setup@
  #pragma unroll 1
  for (int slot = 0; slot < @stages@ - 2; slot++) {
    fetch(k_begin + slot * @tile_k@, slot);
    put(k_begin + slot * @tile_k@, slot);
  }
};

begin(virtual_block);
#pragma unroll 1
for (int block = virtual_block; block < @tiles@; block += @blocks@) {
  @fetches@
  @setup@
  float sum[@tiles_m@][@group_n@ / 2] = {};
  int slot = 0, free_slot = @stages@ - 2;
#pragma unroll 1
  for (int k_first = k_begin; k_first < k_end; k_first += @tile_k@) {
    tgc_copy_wait<@stages@ - 3>();
    tgc_proxy_fence();
    __syncthreads();  // the slot is full, and the products of the turn before the last are complete
    tgc_wgmma_fence();
#pragma unroll
    for (int step = 0; step < @steps@; step++)
#pragma unroll
      for (int i = 0; i < @tiles_m@; i++)
        @multiply@<@group_n@, @trans_a@, @trans_b@>(
            sum[i], matrix_a + (slot * @bytes_a@ + i * @block_bytes@ + step * @step_a@) / 16,
            matrix_b + (slot * @bytes_b@ + step * @step_b@) / 16, true);
    tgc_wgmma_commit();
    const int k_next = k_first + (@stages@ - 2) * @tile_k@;
    fetch(k_next, free_slot);
    put(k_next, free_slot);
    tgc_wgmma_wait<1>();
    slot = slot + 1 < @stages@ ? slot + 1 : 0;
    free_slot = free_slot + 1 < @stages@ ? free_slot + 1 : 0;
  }
  tgc_wgmma_wait<0>();
  __syncthreads();
  if (block + @blocks@ < @tiles@) begin(block + @blocks@);
  @results@
}
