// Special functions that few kernels need: Bessel functions, incomplete gamma, gcd. Included only
// where used. In double throughout, which their series and fractions need.

#define TGC_SPECIAL1(NAME) \
  template <class T> TGC_DEVICE T tgc_special_##NAME(T x) { return T(tgc_##NAME(double(x))); }
#define TGC_SPECIAL2(NAME) \
  template <class T> TGC_DEVICE T tgc_special_##NAME(T a, T x) { \
    return T(tgc_##NAME(double(a), double(x))); \
  }

// exp(-|x|) I_n(x): the power series, or Hankel's expansion where that has converged to the last
// digit before it diverges.
TGC_DEVICE double tgc_scaled_i(int n, double x) {
  double size = tgc_fabs(x), result;
  if (tgc_isnan(x)) return x;
  if (tgc_isinf(x)) return n && x < 0.0 ? -0.0 : 0.0;
  if (size <= 30.0) {
    double z = size * size / 4, term = n ? size / 2 : 1.0, sum = term;
    for (int k = 1; k < 200 && term > sum * 1e-18; k++) sum += term *= z / (double(k) * (k + n));
    result = sum * tgc_exp(-size);
  } else {
    double term = 1.0, sum = 1.0;
    for (int k = 1; k < 60 && tgc_fabs(term) > 1e-18; k++) {
      double odd = 2 * k - 1;
      sum += term *= -(4.0 * n - odd * odd) / (8.0 * k * size);
    }
    result = sum / (2.5066282746310002 * tgc_sqrt(size));
  }
  return n && x < 0.0 ? -result : result;
}
TGC_DEVICE double tgc_i0e(double x) { return tgc_scaled_i(0, x); }
TGC_DEVICE double tgc_i1e(double x) { return tgc_scaled_i(1, x); }
// In two factors, the last of which may overflow.
TGC_DEVICE double tgc_unscaled(double value, double x) {
  double half_power = tgc_exp(0.5 * tgc_fabs(x));
  return value * half_power * half_power;
}
TGC_DEVICE double tgc_i0(double x) { return tgc_unscaled(tgc_i0e(x), x); }
TGC_DEVICE double tgc_i1(double x) { return tgc_unscaled(tgc_i1e(x), x); }
TGC_SPECIAL1(i0) TGC_SPECIAL1(i1) TGC_SPECIAL1(i0e) TGC_SPECIAL1(i1e)

// exp(x) K_n(x), the integral of exp(x - x cosh t) cosh(n t): the trapezoidal rule converges
// faster than any power of the step. Beyond its range only the leading term has digits.
TGC_DEVICE double tgc_scaled_k(int n, double x) {
  if (!(x > 0.0)) return x == 0.0 ? double(INFINITY) : double(NAN);
  if (x < 1e-10) return (n ? 1.0 / x : 0.11593151565841245 - tgc_log(x)) * (1.0 + x);
  if (x > 1e16) return 1.2533141373155003 / tgc_sqrt(x);
  double step = 0.25 / tgc_sqrt(1.0 + x), sum = 0.5;
  for (int k = 1; k < 100000; k++) {
    double half_sine = tgc_sinh(0.5 * step * k), depth = 2.0 * x * half_sine * half_sine;
    sum += tgc_exp(-depth) * (n ? tgc_cosh(step * k) : 1.0);
    if (depth > 50.0 + step * k) break;
  }
  return sum * step;
}
TGC_DEVICE double tgc_k0e(double x) { return tgc_scaled_k(0, x); }
TGC_DEVICE double tgc_k1e(double x) { return tgc_scaled_k(1, x); }
TGC_SPECIAL1(k0e) TGC_SPECIAL1(k1e)

// The library's; NaN at infinity, as SciPy's, and y also below zero.
TGC_DEVICE double tgc_j0(double x) { return tgc_isinf(x) ? double(NAN) : j0(x); }
TGC_DEVICE double tgc_j1(double x) { return tgc_isinf(x) ? double(NAN) : j1(x); }
TGC_DEVICE double tgc_y0(double x) { return x < 0.0 || tgc_isinf(x) ? double(NAN) : y0(x); }
TGC_DEVICE double tgc_y1(double x) { return x < 0.0 || tgc_isinf(x) ? double(NAN) : y1(x); }
TGC_SPECIAL1(j0) TGC_SPECIAL1(j1) TGC_SPECIAL1(y0) TGC_SPECIAL1(y1)

// exp(x^2) erfc(x): far right by its continued fraction.
TGC_DEVICE double tgc_erfcx(double x) {
  if (x < 8.0 || tgc_isnan(x)) return tgc_exp(x * x) * tgc_erfc(x);
  double tail = x;
  for (int k = 30; k > 0; k--) tail = x + 0.5 * k / tail;
  return 0.5641895835477563 / tail;
}
TGC_SPECIAL1(erfcx)

TGC_DEVICE double tgc_entr(double x) {
  if (tgc_isnan(x)) return x;
  return x > 0.0 ? -x * tgc_log(x) : x == 0.0 ? 0.0 : -INFINITY;
}
TGC_SPECIAL1(entr)

// The x with erfc(-x / sqrt(2)) / 2 == p: Newton's method on the logarithm, begun at the leading
// term of the left tail; right of one half by symmetry.
TGC_DEVICE double tgc_ndtri(double p) {
  if (!(p >= 0.0 && p <= 1.0)) return NAN;
  if (p == 0.0 || p == 1.0) return p == 0.0 ? -INFINITY : INFINITY;
  if (p == 0.5) return 0.0;
  double tail = p > 0.5 ? 1.0 - p : p, goal = tgc_log(tail), x = -tgc_sqrt(-2.0 * goal);
  if (x < -2.0) x += tgc_log(-2.5066282746310002 * x) / -x;
  for (int k = 0; k < 60; k++) {
    double scaled = tgc_erfcx(-0.7071067811865476 * x);  // the area over exp(-x^2 / 2) / 2
    double step = (tgc_log(0.5 * scaled) - 0.5 * x * x - goal) * 1.2533141373155003 * scaled;
    x -= step;
    if (tgc_fabs(step) < 1e-15 * (1.0 + tgc_fabs(x))) break;
  }
  return p > 0.5 ? -x : x;
}
TGC_SPECIAL1(ndtri)

// mu - log(1 + mu), with all its digits near 0.
TGC_DEVICE double tgc_log_excess(double mu) {
  if (tgc_fabs(mu) > 0.1) return mu - tgc_log1p(mu);
  double s = mu / (2.0 + mu), z = s * s, sum = 0.0;
  for (int k = 15; k > 1; k -= 2) sum = sum * z + 1.0 / k;
  return s * (mu - 2.0 * z * sum);
}

// lgamma(1 + a) for a >= 0: near 0 its power series.
TGC_DEVICE double tgc_lgamma_next(double a) {
  if (a > 0.01) return tgc_lgamma(a + 1.0);
  const double terms[7] = {-0.5772156649015329, 0.8224670334241132, -0.40068563438653143,
                           0.27058080842778454, -0.20738555102867398, 0.16955717699740818,
                           -0.14404989676884612};
  double sum = 0.0;
  for (int k = 6; k >= 0; k--) sum = (sum + terms[k]) * a;
  return sum;
}

// x^a exp(-x) / gamma(a + 1): by Stirling's series, whose exponent does not cancel, from a = 20 on.
TGC_DEVICE double tgc_gamma_front(double a, double x) {
  if (a < 20.0) return tgc_exp(a * tgc_log(x) - x - tgc_lgamma_next(a));
  double z = 1.0 / (a * a);
  double rest = (1.0 / 12 - z * (1.0 / 360 - z * (1.0 / 1260 - z / 1680))) / a;
  return tgc_exp(-a * tgc_log_excess((x - a) / a) - rest) * 0.3989422804014327 / tgc_sqrt(a);
}

// Both parts for large a by Temme's uniform expansion (1979): two of its terms.
TGC_DEVICE double tgc_gamma_uniform(double a, double x, int part) {
  double mu = (x - a) / a, excess = tgc_log_excess(mu);
  double eta = tgc_copysign(tgc_sqrt(2.0 * excess), mu), first, second;
  if (tgc_fabs(eta) < 0.1) {
    const double terms[7] = {-1.0 / 3, 1.0 / 12, -2.0 / 135, 1.0 / 864, 1.0 / 2835,
                             -139.0 / 777600, 1.0 / 25515};
    first = 0.0;
    for (int k = 6; k >= 0; k--) first = first * eta + terms[k];
    second = -1.0 / 540 + eta * (-1.0 / 288 + eta * (1.0 / 378 - eta * (77.0 / 77760)));
  } else {
    first = 1.0 / mu - 1.0 / eta;
    second = 1.0 / (eta * eta * eta) - (1.0 / 12 + (1.0 + 1.0 / mu) / mu) / mu;
  }
  double rest = tgc_exp(-a * excess) * 0.3989422804014327 / tgc_sqrt(a) * (first + second / a);
  double side = part ? 1.0 : -1.0;
  return 0.5 * tgc_erfc(side * eta * tgc_sqrt(0.5 * a)) + side * rest;
}

// The lower part by its power series, for x up to about a.
TGC_DEVICE double tgc_gamma_series(double a, double x) {
  double term = 1.0, sum = term;
  for (int k = 1; k < 100000 && term > sum * 1e-17; k++) sum += term *= x / (a + k);
  return tgc_gamma_front(a, x) * sum;
}

// The upper part for x < 2 and small a, where the lower one is nearly 1.
TGC_DEVICE double tgc_gamma_upper_series(double a, double x) {
  double term = 1.0, sum = 0.0, power = a * tgc_log(x) - tgc_lgamma_next(a);
  for (int k = 1; k < 100 && tgc_fabs(term) > 1e-18; k++) term *= -x / k, sum += term / (a + k);
  return -tgc_expm1(power) - a * tgc_exp(power) * sum;
}

// The upper part by Lentz's continued fraction, for x beyond a.
TGC_DEVICE double tgc_gamma_fraction(double a, double x) {
  double b = x + 1.0 - a, c = 1e300, d = 1.0 / b, h = d;
  for (int k = 1; k < 100000; k++) {
    double top = -k * (k - a);
    b += 2.0;
    d = top * d + b;
    c = b + top / c;
    d = 1.0 / (d == 0.0 ? 1e-300 : d);
    c = c == 0.0 ? 1e-300 : c;
    h *= d * c;
    if (tgc_fabs(d * c - 1.0) < 1e-16) break;
  }
  return tgc_gamma_front(a, x) * a * h;
}

// The lower (part 0) and upper (part 1) incomplete gamma function over gamma(a).
TGC_DEVICE double tgc_incomplete_gamma(double a, double x, int part) {
  if (a < 0.0 || x < 0.0 || (a == 0.0 && !(x > 0.0))) return NAN;
  if (tgc_isinf(a)) return tgc_isinf(x) ? double(NAN) : double(part);
  if (x == 0.0) return part;
  if (a == 0.0 || tgc_isinf(x)) return 1 - part;
  if (tgc_isnan(a) || tgc_isnan(x)) return NAN;
  if (a > 1e5) return tgc_gamma_uniform(a, x, part);
  bool small = a < 1.0 && x < 1.1 && a * tgc_fabs(tgc_log(x)) < 0.4;
  int side = small || x > a + 1.0;
  double result = small ? tgc_gamma_upper_series(a, x)
                        : side ? tgc_gamma_fraction(a, x) : tgc_gamma_series(a, x);
  return side == part ? result : 1.0 - result;
}
TGC_DEVICE double tgc_igamma(double a, double x) { return tgc_incomplete_gamma(a, x, 0); }
TGC_DEVICE double tgc_igammac(double a, double x) { return tgc_incomplete_gamma(a, x, 1); }
TGC_SPECIAL2(igamma) TGC_SPECIAL2(igammac)

// The Hurwitz zeta function, the sum of (q + k)^-s, for q > -1000 and at poles.
TGC_DEVICE double tgc_hurwitz(double s, double q) {
  if (s == 1.0) return INFINITY;
  if (s < 1.0) return NAN;
  if (q <= 0.0 && q == tgc_floor(q)) return INFINITY;
  if (!(s > 1.0) || !(q > -1000.0)) return NAN;
  if (q <= 0.0 && q != tgc_floor(q) && s != tgc_floor(s)) return NAN;
  if (tgc_isinf(s)) return q == 1.0 ? 1.0 : q < 1.0 ? INFINITY : NAN;  // as SciPy's
  return tgc_isinf(q) ? 0.0 : tgc_zeta(s, q);
}
TGC_SPECIAL2(hurwitz)

#undef TGC_SPECIAL1
#undef TGC_SPECIAL2

template <class T> TGC_DEVICE T tgc_special_gcd(T a, T b) {
  while (b != T(0)) {
    T rest = T(-1) < T(0) && b == T(-1) ? T(0) : T(a % b);  // the quotient may not fit
    a = b, b = rest;
  }
  return a < T(0) ? T(-a) : a;
}
