// Fourier transforms of a few points in registers, and the roots of unity between them.

#ifdef TGC_EMULATOR
#define TGC_TABLE static constexpr
#else
#define TGC_TABLE __device__ constexpr
#endif

// sin and cos of pi x for 0 <= x <= 1 / 4: in float32 by polynomials, within 1 unit of the last place.
TGC_DEVICE void tgc_fft_sincospi(float x, float* s, float* c) {
  const float y = x * x;
  float even = tgc_fma(0.231399536f, y, -1.33508301f), odd = tgc_fma(-0.595703125f, y, 2.55039191f);
  even = tgc_fma(tgc_fma(even, y, 4.05870771f), y, -4.93480206f);
  odd = tgc_fma(odd, y, -5.16772413f);
  *c = tgc_fma(even, y, 1.0f);
  *s = tgc_fma(x, 3.14159274f, x * y * odd);
}
TGC_DEVICE void tgc_fft_sincospi(double x, double* s, double* c) { sincospi(x, s, c); }

// exp(-2 pi i k / n) for 0 <= k < n. The angle is taken to the nearest axis in integers, so that it
// loses no digits: at most pi / 4 is left to round.
template <class T, class K> TGC_DEVICE tgc_complex<T> tgc_fft_root(K k, K n) {
  int octant = int(8 * k / n);
  K rest = 8 * k - octant * n;
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

// The same for the points of a stage, from a table that the compiler makes: a row for each r. Kernels
// that computed these roots spent more instructions on them than on all else.
//
// What a product in float64 rounds off, from halves of the factors (Dekker, 1971).
TGC_DEVICE constexpr double tgc_fft_rest(double a, double b, double product) {
  double most = 134217729 * a, a1 = most - (most - a), a2 = a - a1;
  most = 134217729 * b;
  double b1 = most - (most - b), b2 = b - b1;
  return ((a1 * b1 - product) + a1 * b2 + a2 * b1) + a2 * b2;
}
// cos and sin of 2 pi k / n for 0 <= k <= n / 8 by their series, of the angle and what it lacks.
struct tgc_fft_angle {
  double c, s;
  TGC_DEVICE constexpr tgc_fft_angle(int k, int n) : c(0), s(0) {
    const double two_pi = 6.28318530717958647693, more = 2.4492935982947064e-16;
    double turn = double(k) / n, product = turn * n;
    double lacks = (k - product - tgc_fft_rest(turn, n, product)) / n, x = two_pi * turn;
    lacks = lacks * two_pi + turn * more + tgc_fft_rest(two_pi, turn, x);
    double y = x * x;
    for (int m = 17; m > 1; m -= 2) s = (1 + s) * -y / (m * (m - 1));
    for (int m = 16; m > 0; m -= 2) c = (1 + c) * -y / (m * (m - 1));
    double sine = x + (x * s + lacks * (1 + c));
    c = 1 + (c - lacks * sine);
    s = sine;
  }
};
template <class T, int D, int R, int ROWS> struct alignas(16) tgc_fft_roots {
  T parts[2 * ROWS * D];
  TGC_DEVICE constexpr tgc_fft_roots() : parts() {
    for (int r = 1; r <= ROWS; r++) {
      for (int k = 0; k < D; k++) {
        int n = D * R, octant = 8 * r * k / n, rest = 8 * r * k - octant * n;
        if (octant & 1) rest = n - rest;
        const tgc_fft_angle turn(rest, 8 * n);
        const bool swapped = (octant + 1) & 2, left = octant >= 2 && octant < 6;
        const double re = swapped ? turn.s : turn.c, im = swapped ? turn.c : turn.s;
        parts[2 * ((r - 1) * D + k)] = T(left ? -re : re);
        parts[2 * ((r - 1) * D + k) + 1] = T(octant < 4 ? -im : im);
      }
    }
  }
};
template <class T, int D, int R, int ROWS>
TGC_TABLE tgc_fft_roots<T, D, R, ROWS> tgc_fft_table{};

// exp(-2 pi i r k / (D R)) for 0 < r <= ROWS and 0 <= k < D
template <class T, int D, int R, int ROWS> TGC_DEVICE tgc_complex<T> tgc_fft_listed(int r, int k) {
  const T* const at = tgc_fft_table<T, D, R, ROWS>.parts + 2 * ((r - 1) * D + k);
  return *reinterpret_cast<const tgc_complex<T>*>(at);
}

// Real and imaginary part exchanged.
template <class T> TGC_DEVICE tgc_complex<T> tgc_fft_exchanged(tgc_complex<T> z) {
  return {z.im, z.re};
}

// The points of a stage by their roots.
template <class T> TGC_DEVICE tgc_complex<T> tgc_fft_times(tgc_complex<T> z, tgc_complex<T> w) {
  return {tgc_fma(z.re, w.re, -(z.im * w.im)), tgc_fma(z.re, w.im, z.im * w.re)};
}
template <int D, int R, class T> TGC_DEVICE void tgc_fft_turn(tgc_complex<T> (&v)[R], int k) {
#pragma unroll
  for (int r = 1; r < R; r++) v[r] = tgc_fft_times(v[r], tgc_fft_listed<T, D, R, R - 1>(r, k));
}
// sum + z w
template <class T>
TGC_DEVICE tgc_complex<T> tgc_fft_plus(tgc_complex<T> sum, tgc_complex<T> z, tgc_complex<T> w) {
  return {tgc_fma(-z.im, w.im, tgc_fma(z.re, w.re, sum.re)),
          tgc_fma(z.im, w.re, tgc_fma(z.re, w.im, sum.im))};
}
// Of a real row whose even points are real parts and whose odd ones imaginary parts: frequencies k
// and m - k of the complex row of m points become those of the real one of 2 m, w = exp(-pi i k / m).
template <class T>
TGC_DEVICE void tgc_fft_part(tgc_complex<T>& low, tgc_complex<T>& high, tgc_complex<T> w) {
  const T half = T(0.5);
  const tgc_complex<T> even(half * (low.re + high.re), half * (low.im - high.im));
  const tgc_complex<T> odd(half * (low.im + high.im), half * (high.re - low.re));
  low = tgc_fft_plus(even, odd, w);
  const tgc_complex<T> mirrored = tgc_fft_plus(even, -odd, w);
  high = {mirrored.re, T(0) - mirrored.im};  // its conjugate, without the -0 of the last frequency
}
// The reverse for frequency k, times 2: the ends of the real row's spectrum count as real.
template <class T>
TGC_DEVICE tgc_complex<T> tgc_fft_joined(int k, tgc_complex<T> low, tgc_complex<T> high,
                                         tgc_complex<T> w) {
  if (k == 0) low.im = high.im = T(0);
  const tgc_complex<T> even(low.re + high.re, low.im - high.im);
  const tgc_complex<T> odd(low.re - high.re, low.im + high.im);
  return tgc_fft_plus(even, odd, tgc_complex<T>(w.im, w.re));  // i / w
}
// The points of a stage by powers of the table's first row, which have its error as many times.
template <int D, int R, class T> TGC_DEVICE void tgc_fft_turn_powers(tgc_complex<T> (&v)[R], int k) {
  tgc_complex<T> w[R];
  w[1] = tgc_fft_listed<T, D, R, 1>(1, k);
#pragma unroll
  for (int r = 2; r < R; r++) w[r] = tgc_fft_times(w[r / 2], w[r - r / 2]);
#pragma unroll
  for (int r = 1; r < R; r++) v[r] = tgc_fft_times(v[r], w[r]);
}
// The same computed: for tables that no cache holds.
template <int D, int R, class T> TGC_DEVICE void tgc_fft_turn_computed(tgc_complex<T> (&v)[R], int k) {
#pragma unroll
  for (int r = 1; r < R; r++) v[r] = tgc_fft_times(v[r], tgc_fft_root<T>(r * k, D * R));
}

// Where a point lies in shared memory: after 16 points one is free, so that points 4, 8 or 16 apart
// do not lie in one bank.
TGC_DEVICE int tgc_fft_padded(int point) { return point + point / 16; }

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

// z exp(-pi i / 4)
template <class T> TGC_DEVICE tgc_complex<T> tgc_fft_eighth(tgc_complex<T> z, T half) {
  return {half * (z.re + z.im), half * (z.im - z.re)};
}

// The transform of R points; v[k] receives frequency k.
template <int R, class T> TGC_DEVICE void tgc_fft_butterfly(tgc_complex<T> (&v)[R]) {
  if constexpr (R == 2) {
    tgc_complex<T> a = v[0];
    v[0] = a + v[1];
    v[1] = a - v[1];
  } else if constexpr (R == 16) {  // 4 transforms of 4 points, twice
    tgc_complex<T> part[4][4];
#pragma unroll
    for (int a = 0; a < 4; a++) {
#pragma unroll
      for (int b = 0; b < 4; b++) part[a][b] = v[a + 4 * b];
      tgc_fft_butterfly<4>(part[a]);
    }
    const T half = T(0.70710678118654752440);
    const T c = T(0.92387953251128675613), s = T(0.38268343236508977173);
    part[1][1] = tgc_fft_times(part[1][1], tgc_complex<T>(c, -s));
    part[1][2] = tgc_fft_eighth(part[1][2], half);
    part[1][3] = tgc_fft_times(part[1][3], tgc_complex<T>(s, -c));
    part[2][1] = tgc_fft_eighth(part[2][1], half);
    part[2][2] = tgc_fft_turned(part[2][2]);
    part[2][3] = tgc_fft_turned(tgc_fft_eighth(part[2][3], half));
    part[3][1] = tgc_fft_times(part[3][1], tgc_complex<T>(s, -c));
    part[3][2] = tgc_fft_turned(tgc_fft_eighth(part[3][2], half));
    part[3][3] = tgc_fft_times(part[3][3], tgc_complex<T>(-c, s));
#pragma unroll
    for (int b = 0; b < 4; b++) {
      tgc_complex<T> last[4] = {part[0][b], part[1][b], part[2][b], part[3][b]};
      tgc_fft_butterfly<4>(last);
#pragma unroll
      for (int a = 0; a < 4; a++) v[b + 4 * a] = last[a];
    }
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
