// rfft of 600 rows of 120 points, radices 2 3 5 4, 5 rows a block, 1260000 FLOPs: rfft.
// Stores rfft (600, 61) complex64.
// Grid 120 x 256 threads, 580800 bytes moved at least.
TGC_STAGE(fft_rfft_3c513f07a4,
  const float* in0;
  tgc_complex<float>* out0;
) {
  tgc_complex<float>* const line = reinterpret_cast<tgc_complex<float>*>(smem);
  {  // radix 3 of transforms of 1 points
    tgc_complex<float> v[1][3];
    {
      const int item = threadIdx.x;
      if (item < 100) {
        const int own = item / 20, j = item % 20;
        const int row = virtual_block * 5 + own;
#pragma unroll
        for (int r = 0; r < 3; r++) {
          const int point = j + r * 20;
          const float in0 = tgc_load(p.in0, row * 120 + point * 2);
          const float in0_1 = tgc_load(p.in0, row * 120 + point * 2 + 1);
          tgc_complex<float> value = tgc_complex_of(in0, in0_1);
          v[0][r] = value;
        }
        tgc_fft_butterfly<3>(v[0]);
      }
    }
    {
      const int item = threadIdx.x;
      if (item < 100) {
        const int own = item / 20, j = item % 20;
        tgc_complex<float>* const target = line + own * 60 + j * 3;
#pragma unroll
        for (int r = 0; r < 3; r++) target[r] = v[0][r];
      }
    }
    __syncthreads();
  }
  {  // radix 5 of transforms of 3 points
    tgc_complex<float> v[1][5];
    {
      const int item = threadIdx.x;
      if (item < 60) {
        const int own = item / 12, j = item % 12;
        const tgc_complex<float>* const source = line + own * 60 + j;
#pragma unroll
        for (int r = 0; r < 5; r++) v[0][r] = source[r * 12];
        tgc_fft_turn<3, 5>(v[0], j % 3);
        tgc_fft_butterfly<5>(v[0]);
      }
    }
    __syncthreads();
    {
      const int item = threadIdx.x;
      if (item < 60) {
        const int own = item / 12, j = item % 12;
        tgc_complex<float>* const target = line + own * 60 + j / 3 * 15 + j % 3;
#pragma unroll
        for (int r = 0; r < 5; r++) target[r * 3] = v[0][r];
      }
    }
    __syncthreads();
  }
  {  // radix 4 of transforms of 15 points
    tgc_complex<float> v[1][4];
    {
      const int item = threadIdx.x;
      if (item < 75) {
        const int own = item / 15, j = item % 15;
        const tgc_complex<float>* const source = line + own * 60 + j;
#pragma unroll
        for (int r = 0; r < 4; r++) v[0][r] = source[r * 15];
        tgc_fft_turn<15, 4>(v[0], j);
        tgc_fft_butterfly<4>(v[0]);
      }
    }
    __syncthreads();
    {
      const int item = threadIdx.x;
      if (item < 75) {
        const int own = item / 15, j = item % 15;
        tgc_complex<float>* const target = line + own * 60 + j;
#pragma unroll
        for (int r = 0; r < 4; r++) target[r * 15] = v[0][r];
      }
    }
    __syncthreads();
  }
  // frequencies k and m - k of a real row, from those of its even and odd points as complex numbers
#pragma unroll 4
  for (int item = threadIdx.x; item < 155; item += 256) {
    const int own = item / 31, k = item % 31;
    const int other = k == 0 ? 0 : 60 - k;
    const int row = virtual_block * 5 + own;
    const tgc_complex<float>* const source = line + own * 60;
    tgc_complex<float> low = source[k], high = source[other];
    tgc_fft_part(low, high, tgc_fft_listed<float, 60, 2, 1>(1, k));
    tgc_store(p.out0, row * 61 + k, low);
    tgc_store(p.out0, row * 61 - k + 60, high);
  }
}

// map over 36600 elements, 2 a thread: complex mul.
// Stores mul (600, 61) complex64.
// Grid 72 x 256 threads, 878400 bytes moved at least.
TGC_STAGE(map_complex_mul_12b3b40360,
  const tgc_complex<float>* in0;
  const float* in1;
  const float* in2;
  tgc_complex<float>* out0;
) {
  const int item = virtual_block * 256 + threadIdx.x;
  if (item >= 18300) return;
  const tgc_vector<tgc_complex<float>, 2> in0x2 = tgc_load_vector<2>(p.in0, item * 2);
  const tgc_vector<float, 2> in1x2 = tgc_load_vector<2>(p.in1, item * 2);
  const tgc_vector<float, 2> in2x2 = tgc_load_vector<2>(p.in2, item * 2);
  tgc_vector<tgc_complex<float>, 2> out0x2;
#pragma unroll
  for (int v = 0; v < 2; v++) {
    const tgc_complex<float> in0 = tgc_element(in0x2, v);
    const float in1 = tgc_element(in1x2, v);
    const float in2 = tgc_element(in2x2, v);
    const tgc_complex<float> complex0 = tgc_complex_of(in1, in2);
    const tgc_complex<float> mul0 = in0 * complex0;
    out0x2.at[v] = tgc_to_storage<tgc_complex<float>>(mul0);
  }
  tgc_store_vector(p.out0, item * 2, out0x2);
}

// irfft of 600 rows of 120 points, radices 3 5 8, 5 rows a block, 1260000 FLOPs: irfft.
// Stores irfft (600, 120) float32.
// Grid 120 x 256 threads, 580800 bytes moved at least.
TGC_STAGE(fft_irfft_fac50829fa,
  const tgc_complex<float>* in0;
  float* out0;
) {
  tgc_complex<float>* const line = reinterpret_cast<tgc_complex<float>*>(smem);
  {  // radix 3 of transforms of 1 points
    tgc_complex<float> v[1][3];
    {
      const int item = threadIdx.x;
      if (item < 200) {
        const int own = item / 40, j = item % 40;
        const int row = virtual_block * 5 + own;
#pragma unroll
        for (int r = 0; r < 3; r++) {
          const int point = j + r * 40;
          const bool mirrored = point >= 61;
          const int at = mirrored ? 120 - point : point;
          const tgc_complex<float> in0 = tgc_load(p.in0, row * 61 + at);
          tgc_complex<float> value = in0;
          value.im = at == 0 || at == 60 ? 0 : mirrored ? -value.im : value.im;
          v[0][r] = tgc_fft_exchanged(value);
        }
        tgc_fft_butterfly<3>(v[0]);
      }
    }
    {
      const int item = threadIdx.x;
      if (item < 200) {
        const int own = item / 40, j = item % 40;
        tgc_complex<float>* const target = line + own * 120 + j * 3;
#pragma unroll
        for (int r = 0; r < 3; r++) target[r] = v[0][r];
      }
    }
    __syncthreads();
  }
  {  // radix 5 of transforms of 3 points
    tgc_complex<float> v[1][5];
    {
      const int item = threadIdx.x;
      if (item < 120) {
        const int own = item / 24, j = item % 24;
        const tgc_complex<float>* const source = line + own * 120 + j;
#pragma unroll
        for (int r = 0; r < 5; r++) v[0][r] = source[r * 24];
        tgc_fft_turn<3, 5>(v[0], j % 3);
        tgc_fft_butterfly<5>(v[0]);
      }
    }
    __syncthreads();
    {
      const int item = threadIdx.x;
      if (item < 120) {
        const int own = item / 24, j = item % 24;
        tgc_complex<float>* const target = line + own * 120 + j / 3 * 15 + j % 3;
#pragma unroll
        for (int r = 0; r < 5; r++) target[r * 3] = v[0][r];
      }
    }
    __syncthreads();
  }
  {  // radix 8 of transforms of 15 points
    tgc_complex<float> v[1][8];
    {
      const int item = threadIdx.x;
      if (item < 75) {
        const int own = item / 15, j = item % 15;
        const tgc_complex<float>* const source = line + own * 120 + j;
#pragma unroll
        for (int r = 0; r < 8; r++) v[0][r] = source[r * 15];
        tgc_fft_turn<15, 8>(v[0], j);
        tgc_fft_butterfly<8>(v[0]);
      }
    }
    {
      const int item = threadIdx.x;
      if (item < 75) {
        const int own = item / 15, j = item % 15;
        const int row = virtual_block * 5 + own;
#pragma unroll
        for (int r = 0; r < 8; r++) {
          const int point = j + r * 15;
          const tgc_complex<float> value = tgc_fft_exchanged(v[0][r]);
          tgc_store(p.out0, row * 120 + point, 0.008333334f * value.re);
        }
      }
    }
  }
}
