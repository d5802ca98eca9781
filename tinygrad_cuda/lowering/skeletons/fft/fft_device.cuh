// Fourier transforms of a few points in registers, and the roots of unity between them.

TGC_DEVICE void tgc_fft_sincospi(float x, float* s, float* c) { sincospif(x, s, c); }
TGC_DEVICE void tgc_fft_sincospi(double x, double* s, double* c) { sincospi(x, s, c); }

// exp(-2 pi i k / n) for 0 <= k < n. The angle is taken to the nearest axis in integers, so that it
// loses no digits: at most pi / 4 is left to round.
template <class T> TGC_DEVICE tgc_complex<T> tgc_fft_root(int k, int n) {
  int octant = 8 * k / n, rest = 8 * k - octant * n;
  if (octant & 1) rest = n - rest;
  T turn = T(rest) / T(4 * n), s, c;
  tgc_fft_sincospi(turn, &s, &c);
  if ((octant + 1) & 2) {  // nearer to the imaginary axis
    T other = s;
    s = c;
    c = other;
  }
  bool left = octant >= 2 && octant < 6;
  return {left ? -c : c, octant < 4 ? -s : s};
}

// cos and sin of 2 pi k / R, for odd R and 0 <= k <= R / 2.
template <int R> TGC_DEVICE constexpr double tgc_fft_cosine(int k) {
  if (R == 3) return -0.5;
  if (R == 5) return k == 1 ? 0.30901699437494742410 : -0.80901699437494742410;
  if (R == 7)
    return k == 1 ? 0.62348980185873353053 : k == 2 ? -0.22252093395631440429
                                                    : -0.90096886790241912624;
  if (R == 11)
    return k == 1 ? 0.84125353283118116886 : k == 2 ? 0.41541501300188642553
         : k == 3 ? -0.14231483827328514044 : k == 4 ? -0.65486073394528506406
                                                     : -0.95949297361449738989;
  return k == 1 ? 0.88545602565320989590 : k == 2 ? 0.56806474673115580251
       : k == 3 ? 0.12053668025532305335 : k == 4 ? -0.35460488704253562597
       : k == 5 ? -0.74851074817110109863 : -0.97094181742605202716;
}
template <int R> TGC_DEVICE constexpr double tgc_fft_sine(int k) {
  if (R == 3) return 0.86602540378443864676;
  if (R == 5) return k == 1 ? 0.95105651629515357212 : 0.58778525229247312917;
  if (R == 7)
    return k == 1 ? 0.78183148246802980871 : k == 2 ? 0.97492791218182360702
                                                    : 0.43388373911755812048;
  if (R == 11)
    return k == 1 ? 0.54064081745559758211 : k == 2 ? 0.90963199535451837141
         : k == 3 ? 0.98982144188093273238 : k == 4 ? 0.75574957435425828377
                                                    : 0.28173255684142969771;
  return k == 1 ? 0.46472317204376854566 : k == 2 ? 0.82298386589365639458
       : k == 3 ? 0.99270887409805399280 : k == 4 ? 0.93501624268541482343
       : k == 5 ? 0.66312265824079520237 : 0.23931566428755776715;
}

// -i z
template <class T> TGC_DEVICE tgc_complex<T> tgc_fft_turned(tgc_complex<T> z) {
  return {z.im, -z.re};
}

// The transform of R points; v[k] receives frequency k.
template <int R, class T> TGC_DEVICE void tgc_fft_butterfly(tgc_complex<T> (&v)[R]) {
  if constexpr (R == 2) {
    tgc_complex<T> a = v[0];
    v[0] = a + v[1];
    v[1] = a - v[1];
  } else if constexpr (R == 4 || R == 8) {
    tgc_complex<T> even[R / 2], odd[R / 2];
#pragma unroll
    for (int k = 0; k < R / 2; k++) {
      even[k] = v[2 * k];
      odd[k] = v[2 * k + 1];
    }
    tgc_fft_butterfly<R / 2>(even);
    tgc_fft_butterfly<R / 2>(odd);
    if constexpr (R == 8) {
      const T half = T(0.70710678118654752440);
      odd[1] = tgc_complex<T>(half * (odd[1].re + odd[1].im), half * (odd[1].im - odd[1].re));
      odd[3] = tgc_complex<T>(half * (odd[3].im - odd[3].re), half * (-odd[3].re - odd[3].im));
    }
    odd[R / 4] = tgc_fft_turned(odd[R / 4]);
#pragma unroll
    for (int k = 0; k < R / 2; k++) {
      v[k] = even[k] + odd[k];
      v[k + R / 2] = even[k] - odd[k];
    }
  } else {  // pairs of points that lie opposite each other share their products
    tgc_complex<T> first = v[0], sums[R / 2], differences[R / 2];
#pragma unroll
    for (int j = 1; j <= R / 2; j++) {
      sums[j - 1] = v[j] + v[R - j];
      differences[j - 1] = v[j] - v[R - j];
      v[0] = v[0] + sums[j - 1];
    }
#pragma unroll
    for (int k = 1; k <= R / 2; k++) {
      tgc_complex<T> even = first, odd(T(0));
#pragma unroll
      for (int j = 1; j <= R / 2; j++) {
        int at = j * k % R, near = at > R / 2 ? R - at : at;
        T c = T(tgc_fft_cosine<R>(near)), s = T(tgc_fft_sine<R>(near));
        if (at > R / 2) s = -s;
        even.re = tgc_fma(c, sums[j - 1].re, even.re);
        even.im = tgc_fma(c, sums[j - 1].im, even.im);
        odd.re = tgc_fma(s, differences[j - 1].re, odd.re);
        odd.im = tgc_fma(s, differences[j - 1].im, odd.im);
      }
      odd = tgc_fft_turned(odd);
      v[k] = even + odd;
      v[R - k] = even - odd;
    }
  }
}
