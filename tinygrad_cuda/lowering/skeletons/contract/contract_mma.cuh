// contract_mma: C[m, n] = epilogue(sum over k of A(m, k) * B(k, n)) on matrix units: mma.sync
// m16n8k16 of 16-bit operands, sums in float32.
// A block of 8 warps computes tile_m x tile_n outputs, a warp warp_m x warp_n of them. Tiles of A and
// B pass through a ring of `stages` slots in shared memory. An operand that lies in memory as it is
// multiplied is copied there asynchronously, 16 bytes at a time; any other one goes through its
// loads (loads.py), prefetched into registers while a tile is multiplied. A slot has the operand's
// rows as memory has them: contiguous along k they are read by ldmatrix, along the other axis by
// ldmatrix.trans. Rows are padded by 16 bytes, so that eight of them begin in different banks. Each
// warp's outputs pass through shared memory, so that the epilogue loads and stores along rows.
//
// Columns: an epilogue may reduce its outputs' columns, too. Parts then go down the rows first:
//
//   thread     8 columns of each row that it stores, in registers, over all parts of these columns
//   warp       lanes with the same columns, by shuffles
//   warpgroup  4 warps, through the memory where their sums were staged
//   tiles      of a warpgroup one after another in memory, where all have the same columns
//   second     warpgroups in their order, by join_columns in column_reduce.cuh
//
// Bytes: A tiles_n times and B tiles_m times, most of them from L2 (`band` rows of tiles are
// computed at one time); each output once.
//@ body
@fetches@
char* const shared_a = smem;
char* const shared_b = smem + @stages@ * @bytes_a@;
const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
const int warp_m = warp / @warps_n@ * @warp_m@, warp_n = warp % @warps_n@ * @warp_n@;
float sum[@tiles_m@][@tiles_8@][4] = {};
unsigned a[2][@tiles_m@][4], b[2][@tiles_8@][2];
@declare@
@setup@

const char* const matrix_a = shared_a + @matrix_a@;
const char* const matrix_b = shared_b + @matrix_b@;
auto read = [&](int target, int slot, int step) {
#pragma unroll
  for (int i = 0; i < @tiles_m@; i++)
    @ldmatrix_a@(a[target][i], matrix_a + slot * @bytes_a@ + i * @next_a@ + step * @step_a@);
#pragma unroll
  for (int j = 0; j < @tiles_8@; j += 2) {
    unsigned two[4];
    @ldmatrix_b@(two, matrix_b + slot * @bytes_b@ + j / 2 * @next_b@ + step * @step_b@);
#pragma unroll
    for (int q = 0; q < 4; q++) b[target][j + q / 2][q % 2] = two[q];
  }
};

#pragma unroll 1
for (int slot = 0; slot < @stages@ - 1; slot++) {
  fetch(k_begin + slot * @tile_k@, slot);
  put(k_begin + slot * @tile_k@, slot);
}
int slot = 0, free_slot = @stages@ - 1;
#pragma unroll 1
for (int k_first = k_begin; k_first < k_end; k_first += @tile_k@) {
  tgc_copy_wait<@stages@ - 2>();
  __syncthreads();  // the slot is full, and no warp reads the one before it any more
  const int k_next = k_first + (@stages@ - 1) * @tile_k@;
  fetch(k_next, free_slot);
  read(0, slot, 0);
#pragma unroll
  for (int step = 0; step < @steps@; step++) {
    if (step + 1 < @steps@) read((step + 1) % 2, slot, step + 1);
    @products@
  }
  put(k_next, free_slot);
  slot = slot + 1 < @stages@ ? slot + 1 : 0;
  free_slot = free_slot + 1 < @stages@ ? free_slot + 1 : 0;
}
tgc_copy_wait<0>();
__syncthreads();
@results@
//@ products
#pragma unroll
for (int i = 0; i < @tiles_m@; i++)
#pragma unroll
  for (int j = 0; j < @tiles_8@; j++) @multiply@(sum[i][j], a[step % 2][i], b[step % 2][j]);
//@ tile
const int tile_index = @block@ % @grid@;
const int batch = @block@ / @grid@ % @batches@;
const int k_slice = @block@ / @grid@ / @batches@;
const int band = tile_index / (@band@ * @grid_n@) * @band@;
const int band_rows = @grid_m@ - band < @band@ ? @grid_m@ - band : @band@;
const int tile_m = band + tile_index % (@band@ * @grid_n@) % band_rows;
const int tile_n = tile_index % (@band@ * @grid_n@) / band_rows;
//@ fetches
@tile@
@outer@
const int k_begin = k_slice * @chunk@;
const int k_end = k_begin + @chunk@ < @k@ ? k_begin + @chunk@ : @k@;
//@ pipeline
auto fetch = [&](int k_first, int slot) {
  if (k_first < k_end) {
    {
      @fetch_a@
    }
    {
      @fetch_b@
    }
  }
  tgc_copy_commit();
};
auto put = [&](int k_first, int slot) {
  if (k_first >= k_end) return;
  @put_a@
  @put_b@
};
//@ copy
@thread@
#pragma unroll
for (int i = 0; i < @loads@; i++) {
  const int row = i * @rows@ + @row@;
  @skip@
  const int @strided@ = @strided_first@ + row;
  const bool inside = @in_bounds@;
  tgc_copy_async16(shared_@side@ + slot * @bytes@ + row * @stride@ + @column@,
                   @pointer@ + (inside ? @index@ : 0), inside);
}
//@ rows
// Where each row begins, and its mask of padding: a bit for each filter tap that is out of bounds.
int begin_@side@[@loads@];
unsigned out_of_bounds_@side@[@loads@];
#pragma unroll
for (int i = 0; i < @loads@; i++) {
  const int @strided@ = @strided_first@ + i * @rows@ + @row@;
  begin_@side@[i] = @begin@;
  unsigned out_of_bounds = @strided@ < @extent@ ? @outside@ : ~0u;
  @mark@
  out_of_bounds_@side@[i] = out_of_bounds;
}
//@ copy_rows
@thread@
#pragma unroll
for (int i = 0; i < @loads@; i++) {
  const int row = i * @rows@ + @row@;
  @skip@
  tgc_copy_async16(shared_@side@ + slot * @bytes@ + row * @stride@ + @column@,
                   from_@side@ + begin_@side@[i], (out_of_bounds_@side@[i] & taps_@side@) == 0);
}
//@ copy_shared_rows
// Each of a row's threads computes where one of its rows begins, and that row's mask of padding.
@declare@
unsigned out_of_bounds;
{
  const int @strided@ = k_first + threadIdx.x % @length@ * @rows@ + @row@;
  @computed@
  out_of_bounds = @strided@ < k_end ? @outside@ : ~0u;
  @mark@
}
#pragma unroll
for (int i = 0; i < @loads@; i++) {
  const int row = i * @rows@ + @row@;
  @from@
  const unsigned mask = __shfl_sync(0xffffffffu, out_of_bounds, i, @length@);
  tgc_copy_async16(shared_@side@ + slot * @bytes@ + row * @stride@ + @column@,
                   from_@side@ + begin, (mask & taps_@side@) == 0);
}
//@ put
{
  char* const tile = shared_@side@ + slot * @bytes@;
#pragma unroll
  for (int i = 0; i < @loads@; i++) {
    const int row = i * @rows@ + @row@;
    @skip@
    float values[@width@];
#pragma unroll
    for (int v = 0; v < @width@; v++) values[v] = prefetch_@side@[i * @width@ + v];
    *reinterpret_cast<tgc_vector<@storage@, @width@>*>(tile + row * @stride@ + @column@) =
        tgc_rounded<@storage@>(values);
  }
}
//@ results
// A warp's 16 x columns sums in shared memory. Groups of 8 columns are exchanged by row, so that rows
// meet different banks, and the halves of the last four groups, so that a row's strips do.
float* const staged = reinterpret_cast<float*>(smem + @staging@) + warp * (16 * @columns@);
@declare_columns@
#pragma unroll @unroll@
for (int part = 0; part < @parts@; part++) {
  @start_columns@
  @early@
#pragma unroll
  for (int i = 0; i < @tiles_m@; i++)
#pragma unroll
    for (int c = 0; c < @chunks@; c++) {
      if (part != @part_number@) continue;  // sums are registers: their indices are constants
#pragma unroll
      for (int j = 0; j < @columns@ / 8; j++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          tgc_vector<float, 2> pair;
          pair.at[0] = @low@;
          pair.at[1] = @high@;
          const int at = (j ^ lane / 4 % @groups@) * 8 + lane % 4 * 2;
          *reinterpret_cast<tgc_vector<float, 2>*>(
              staged + (half * 8 + lane / 4) * @columns@ + (at ^ at / 32 * 4)) = pair;
        }
    }
  @meet@
#pragma unroll @unroll_turns@
  for (int turn = @first_turn@; turn < @turns@; @next_turn@) {
    const int e = turn * 32 + lane;
    const int row = e / (@columns@ / @lanes@), column = e % (@columns@ / @lanes@);
    const int m = tile_m * @tile_m@ + warp_m + @row_part@ * @row_step@ + row;
    const int first = tile_n * @tile_n@ + warp_n + @column_part@ * @columns@;
    const int strip = first / @lanes@ + column;
    @bounds@{
      float totals[@lanes@];
      @totals@
      @check@
      @row@
      @load@
#pragma unroll
      for (int v = 0; v < @lanes@; v++) {
        const float total = totals[v];
        @map@
      }
      @store@
    }
  }
  @meet@
  @join_columns@
}
//@ join_columns
// All rows of these columns are summed: lanes with the same ones join theirs, then the warps do.
@condition@{
  const int column = threadIdx.x % 128, n = tile_n * @tile_n@ + warp_n + @column_part@ * @columns@ + column;
  const bool own = column < @columns@@bound@;
  @tiles_before@
  @lanes_join@
  tgc_named_barrier(3 + group, 128);
  if (own) {
    @warps_join@
  }
  tgc_named_barrier(3 + group, 128);  // sums may be staged there again
}
//@ join_lanes
#pragma unroll
for (int v = 0; v < @lanes@; v++) {
  @name@[v] = tgc_strided_reduce<@strips@>(@name@[v], @operator@);
  if (lane < @strips@) reinterpret_cast<@ctype@*>(staged + @offset@)[lane * @lanes@ + v] = @name@[v];
}
//@ join_warps
{
  const float* const parts = staged - warp % 4 * @staged@ + @offset@;
  @ctype@ total = reinterpret_cast<const @ctype@*>(parts)[column];
#pragma unroll
  for (int other = 1; other < 4; other++)
    total = @operator@(total, reinterpret_cast<const @ctype@*>(parts + other * @staged@)[column]);
  tgc_store(@partial@, @place@, @total@);
}
//@ own_totals
#pragma unroll
for (int v = 0; v < @lanes@; v += @fragment@) {
  const int at = column * @lanes@ + v ^ row % @groups@ * 8;
  const tgc_vector<float, @fragment@> several =
      *reinterpret_cast<const tgc_vector<float, @fragment@>*>(
          staged + row * @columns@ + (at ^ at / 32 * 4));
#pragma unroll
  for (int q = 0; q < @fragment@; q++) totals[v + q] = several.at[q];
}
//@ cluster_totals
#pragma unroll
for (int v = 0; v < @lanes@; v += @fragment@) {
  const int at = column * @lanes@ + v ^ row % @groups@ * 8;
  const float* const own = staged + row * @columns@ + (at ^ at / 32 * 4);
#pragma unroll
  for (int rank = 0; rank < @slices@; rank++) {  // in the order of k
    const tgc_vector<float, @fragment@> several = tgc_cluster_load<@fragment@>(own, rank);
#pragma unroll
    for (int q = 0; q < @fragment@; q++)
      totals[v + q] = rank > 0 ? totals[v + q] + several.at[q] : several.at[q];
  }
}
//@ ahead
@declare@
#pragma unroll
for (int turn = 0; turn < @turns@; turn++) {
  const int e = turn * 32 + lane;
  const int row = e / (@columns@ / @lanes@), column = e % (@columns@ / @lanes@);
  const int m = tile_m * @tile_m@ + warp_m + @row_part@ * @row_step@ + row;
  const int first = tile_n * @tile_n@ + warp_n + @column_part@ * @columns@;
  const int strip = first / @lanes@ + column;
  @bounds@{
    @loads@
  }
}
