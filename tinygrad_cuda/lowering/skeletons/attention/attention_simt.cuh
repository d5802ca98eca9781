// attention_simt: the kernels of attention.cuh by multiply-adds of float32 units ("ieee").
// Sums lie in a warp's registers as matrix units leave them, see mma.cuh, so that all else is shared
// with attention_tf32.cuh: a lane has rows group and group + 8 of 16, and of 8 columns 2 pair and
// 2 pair + 1.
//
// Scores: for 4 k a lane reads its rows and its columns as vectors of 16 bytes, eight different rows
// in a warp from different banks. Results: a lane has 4 neighbours of every 16 columns; of each row
// of the other factor it reads those, and takes the rows' probabilities from the lane that has them.
//
// Grid and bytes are those of attention_tf32.cuh. 8 x 12 heads of 1024 x 64, causal, on an H200, us of
// the forward kernel, of queries and of keys: 540 (24 TFLOP/s), 797, 1112.
//@ products
#pragma unroll 2
for (int step = 0; step < @steps@; step++) {
  tgc_vector<float, 4> a[@groups@][2];
#pragma unroll
  for (int i = 0; i < @groups@; i++)
#pragma unroll
    for (int half = 0; half < 2; half++)
      a[i][half] = *reinterpret_cast<const tgc_vector<float, 4>*>(
          @a@ + (row_first + i * 16 + half * 8 + lane / 4) * @stride@ + step * 16);
#pragma unroll
  for (int j = 0; j < @columns@ / 8; j++)
#pragma unroll
    for (int side = 0; side < 2; side++) {
      const auto b = *reinterpret_cast<const tgc_vector<float, 4>*>(
          @b@ + (j * 8 + lane % 4 * 2 + side) * @stride_b@ + step * 16);
#pragma unroll
      for (int i = 0; i < @groups@; i++)
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
          for (int v = 0; v < 4; v++)
            @sum@[i][j][half * 2 + side] =
                tgc_fma(a[i][half].at[v], b.at[v], @sum@[i][j][half * 2 + side]);
    }
}
//@ combine
#pragma unroll
for (int column = 0; column < @columns@; column++) {
  float own[@groups@][2];
#pragma unroll
  for (int i = 0; i < @groups@; i++)
#pragma unroll
    for (int half = 0; half < 2; half++)
      own[i][half] = tgc_shuffle(@element@, lane / 4 * 4 + column % 8 / 2);
#pragma unroll
  for (int j = 0; j < @width@ / 8; j += 2) {
    const auto b = *reinterpret_cast<const tgc_vector<float, 4>*>(
        @b@ + column * @stride@ + j * 32 + lane % 4 * 16);
#pragma unroll
    for (int i = 0; i < @groups@; i++)
#pragma unroll
      for (int half = 0; half < 2; half++)
#pragma unroll
        for (int v = 0; v < 4; v++)
          @sum@[i][j + v % 2][half * 2 + v / 2] =
              tgc_fma(own[i][half], b.at[v], @sum@[i][j + v % 2][half * 2 + v / 2]);
  }
}
