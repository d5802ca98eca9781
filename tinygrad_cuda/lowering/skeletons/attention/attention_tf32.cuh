// attention_tf32: the kernels of attention.cuh for float32 operands, which mma.sync m16n8k8 reads as
// tf32 numbers: 10 mantissa bits. Sums, powers and the rows' largest scores are float32.
//
// 1. One product ("high", "medium"): operands in shared memory are truncated as the unit reads them,
//    probabilities are rounded to the nearest.
// 2. Three products ("highest"): each factor is the sum of a high and a low tf32 number; low * high,
//    high * low and high * high of 8 k are summed in the unit, which truncates, and that sum is added
//    to a float32 register. No part of a finite number is infinite, since nothing is summed again
//    here. An infinity has results of IEEE 754 beside factors below 2^9, whose low parts are then so
//    small that eight of their products with its high part are finite.
//
// A warp's scores are the first factor of the next product as they lie in its registers: of 8 columns,
// a thread has 2 pair and 2 pair + 1, and so the unit's k is pair and pair + 4. The other factor's
// rows are read in that order, two neighbours of a row at once: they belong to two tiles of 8
// columns of the result, of which a thread then has 4 neighbours, that it stores without
// shared memory.
//
// Grid: a block of 256 threads for each tile of rows and each head, as in attention.cuh. Bytes: rows
// once, columns once for each tile of rows, most of them from L2; each result once. Operands take
// twice the shared memory of 16-bit ones.
//
// 8 x 12 heads of 1024 x 64, causal, on an H200, us of the forward kernel, of queries and of keys:
// one product 135, 187, 238 (96 TFLOP/s forward); three 359, 541, 657.
//@ products
#pragma unroll 2
for (int step = 0; step < @steps@; step++) {
  unsigned high_a[@groups@][4], low_a[@groups@][4];
#pragma unroll
  for (int i = 0; i < @groups@; i++) {
    unsigned a[4];
    tgc_ldmatrix_x4(a, @a@ + (row_first + i * 16 + lane % 16) * @stride@ + lane / 16 * 16
                           + step * 32);
#pragma unroll
    for (int q = 0; q < 4; q++) tgc_tf32_split(a[q], high_a[i][q], low_a[i][q]);
  }
#pragma unroll
  for (int j = 0; j < @columns@ / 8; j += 2) {
    unsigned b[4];
    tgc_ldmatrix_x4(b, @b@ + (j * 8 + lane / 16 * 8 + lane % 8) * @stride_b@ + lane / 8 % 2 * 16
                           + step * 32);
    unsigned high_b[2][2], low_b[2][2];
#pragma unroll
    for (int q = 0; q < 4; q++) tgc_tf32_split(b[q], high_b[q / 2][q % 2], low_b[q / 2][q % 2]);
    @multiply_parts@
  }
}
//@ multiply_parts
#pragma unroll
for (int i = 0; i < @groups@; i++)
#pragma unroll
  for (int side = 0; side < 2; side++) {
    float part[4] = {};
    tgc_mma_tf32(part, low_a[i], high_b[side]);
    tgc_mma_tf32(part, high_a[i], low_b[side]);
    tgc_mma_tf32(part, high_a[i], high_b[side]);
#pragma unroll
    for (int q = 0; q < 4; q++) @sum@[i][j + side][q] += part[q];
  }
//@ combine
#pragma unroll
for (int step = 0; step < @columns@ / 8; step++) {
  @factors@
#pragma unroll
  for (int j = 0; j < @width@ / 8; j += 2) {
    const char* const from = @b@ + (step * 8 + lane % 4 * 2) * @stride@ + lane / 4 * 8 + j * 32;
    const auto even = @load_pair@(from);
    const auto odd = @load_pair@(from + @stride@);
    @multiply@
  }
}
//@ factors
unsigned a[@groups@][4];
#pragma unroll
for (int i = 0; i < @groups@; i++)
#pragma unroll
  for (int q = 0; q < 4; q++) a[i][q] = tgc_tf32(@element@);
//@ multiply
#pragma unroll
for (int side = 0; side < 2; side++) {
  const unsigned b[2] = {__float_as_uint(even.at[side]), __float_as_uint(odd.at[side])};
#pragma unroll
  for (int i = 0; i < @groups@; i++) tgc_mma_tf32(@sum@[i][j + side], a[i], b);
}
//@ factors_parts
unsigned high_a[@groups@][4], low_a[@groups@][4];
#pragma unroll
for (int i = 0; i < @groups@; i++)
#pragma unroll
  for (int q = 0; q < 4; q++)
    tgc_tf32_split(__float_as_uint(@element@), high_a[i][q],
                   low_a[i][q]);
//@ split_values
unsigned high_b[2][2], low_b[2][2];
#pragma unroll
for (int side = 0; side < 2; side++) {
  tgc_tf32_split(__float_as_uint(even.at[side]), high_b[side][0], low_b[side][0]);
  tgc_tf32_split(__float_as_uint(odd.at[side]), high_b[side][1], low_b[side][1]);
}
//@ store
#pragma unroll
for (int i = 0; i < @groups@; i++)
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int @position@ = @rows@_first + row_first + i * 16 + half * 8 + lane / 4;
    if (@position@ < @extent@) {
#pragma unroll
      for (int j = 0; j < @width@ / 8; j += 2) {
        const auto sum = [&](int side, int q) { return @sum@[i][j + side][half * 2 + q] * @factor@; };
        tgc_store_vector(@pointer@, @index@ + j * 8 + lane % 4 * 4,
                         tgc_vector<float, 4>{{sum(0, 0), sum(1, 0), sum(0, 1), sum(1, 1)}});
      }
    }
  }
