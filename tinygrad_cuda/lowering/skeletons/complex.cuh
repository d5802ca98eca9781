// Complex numbers, for kernels that have some: two numbers of one type beside each other, real part
// first, as NumPy and PyTorch store them. Products and quotients round as NumPy's do (Smith, 1962).

template <class T> struct alignas(2 * sizeof(T)) tgc_complex {
  T re, im;
  tgc_complex() = default;
  TGC_DEVICE tgc_complex(T real, T imag = T(0)) : re(real), im(imag) {}
  template <class U> TGC_DEVICE explicit tgc_complex(tgc_complex<U> z) : re(T(z.re)), im(T(z.im)) {}
};
template <class T> struct tgc_is_complex<tgc_complex<T>> { static constexpr bool value = true; };

TGC_DEVICE tgc_complex<float> tgc_complex_of(float re, float im) { return {re, im}; }
TGC_DEVICE tgc_complex<double> tgc_complex_of(double re, double im) { return {re, im}; }

#define TGC_COMPLEX(NAME) template <class T> TGC_DEVICE tgc_complex<T> NAME
TGC_COMPLEX(operator-)(tgc_complex<T> z) { return {-z.re, -z.im}; }
TGC_COMPLEX(operator+)(tgc_complex<T> a, tgc_complex<T> b) { return {a.re + b.re, a.im + b.im}; }
TGC_COMPLEX(operator-)(tgc_complex<T> a, tgc_complex<T> b) { return {a.re - b.re, a.im - b.im}; }
TGC_COMPLEX(operator*)(tgc_complex<T> a, tgc_complex<T> b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
// By the larger part of the divisor, so that no square overflows.
TGC_COMPLEX(operator/)(tgc_complex<T> a, tgc_complex<T> b) {
  T re = tgc_fabs(b.re), im = tgc_fabs(b.im);
  if (re == T(0) && im == T(0)) return {a.re / re, a.im / re};
  if (re >= im) {
    T ratio = b.im / b.re, scale = T(1) / (b.re + b.im * ratio);
    return {(a.re + a.im * ratio) * scale, (a.im - a.re * ratio) * scale};
  }
  T ratio = b.re / b.im, scale = T(1) / (b.im + b.re * ratio);
  return {(a.re * ratio + a.im) * scale, (a.im * ratio - a.re) * scale};
}
template <class T> TGC_DEVICE bool operator==(tgc_complex<T> a, tgc_complex<T> b) {
  return a.re == b.re && a.im == b.im;
}
template <class T> TGC_DEVICE bool operator!=(tgc_complex<T> a, tgc_complex<T> b) {
  return !(a == b);
}
TGC_COMPLEX(tgc_conj)(tgc_complex<T> z) { return {z.re, -z.im}; }

TGC_COMPLEX(tgc_exp)(tgc_complex<T> z) {
  T size = tgc_exp(z.re);
  if (z.im == T(0)) return {size, z.im};
  if (tgc_isinf(z.re) && !tgc_isfinite(z.im)) {
    return {size, size == T(0) ? tgc_copysign(T(0), z.im) : z.im - z.im};
  }
  T c = tgc_cos(z.im), s = tgc_sin(z.im);
  if (tgc_isinf(size) && !tgc_isinf(z.re)) {  // the product may be finite where this factor is not
    T root = tgc_exp(z.re / T(2));
    return {root * c * root, root * s * root};
  }
  return {size * c, size * s};
}
// Near |z| = 1 the logarithm of the size is that of what it lacks to 1.
TGC_COMPLEX(tgc_log)(tgc_complex<T> z) {
  T a = tgc_fabs(z.re), b = tgc_fabs(z.im), angle = tgc_atan2(z.im, z.re);
  T large = tgc_max(a, b), small = tgc_min(a, b);
  if (tgc_isinf(a) || tgc_isinf(b)) return {T(INFINITY), angle};
  if (large == T(0)) return {T(-INFINITY), angle};
  if (large > T(0.5) && large < T(2)) {
    return {T(0.5) * tgc_log1p((large - T(1)) * (large + T(1)) + small * small), angle};
  }
  T ratio = small / large;
  return {tgc_log(large) + T(0.5) * tgc_log1p(ratio * ratio), angle};
}
// The principal root, whose real part is not negative; the size is scaled where it would overflow.
TGC_COMPLEX(tgc_sqrt)(tgc_complex<T> z) {
  if (tgc_isinf(z.im)) return {T(INFINITY), z.im};
  if (tgc_isinf(z.re)) {
    T rest = tgc_isnan(z.im) ? z.im : T(0);
    if (z.re > T(0)) return {z.re, tgc_copysign(rest, z.im)};
    return {rest, tgc_copysign(T(INFINITY), z.im)};
  }
  T largest = tgc_max(tgc_fabs(z.re), tgc_fabs(z.im)), scale = T(1);
  if (largest == T(0)) return {T(0), z.im};
  if (largest > T(1e37)) z.re *= T(0.25), z.im *= T(0.25), scale = T(2);
  if (largest < T(1e-30)) z.re *= T(1 << 24), z.im *= T(1 << 24), scale = T(1) / T(1 << 12);
  T root = tgc_sqrt(T(0.5) * (tgc_fabs(z.re) + tgc_hypot(z.re, z.im)));
  T other = tgc_fabs(z.im) / (root + root);
  if (z.re >= T(0)) return {scale * root, scale * tgc_copysign(other, z.im)};
  return {scale * other, scale * tgc_copysign(root, z.im)};
}
TGC_COMPLEX(tgc_sinh)(tgc_complex<T> z) {
  if (z.im == T(0)) return {tgc_sinh(z.re), z.im};
  if (!tgc_isfinite(z.im) && (z.re == T(0) || tgc_isinf(z.re))) return {z.re, z.im - z.im};
  return {tgc_sinh(z.re) * tgc_cos(z.im), tgc_cosh(z.re) * tgc_sin(z.im)};
}
TGC_COMPLEX(tgc_cosh)(tgc_complex<T> z) {
  if (tgc_isnan(z.re) && z.im == T(0)) return z;
  if (z.im == T(0)) return {tgc_cosh(z.re), tgc_copysign(T(1), z.re) * z.im};
  if (!tgc_isfinite(z.im) && z.re == T(0)) return {z.im - z.im, T(0)};
  if (!tgc_isfinite(z.im) && tgc_isinf(z.re)) return {tgc_fabs(z.re), z.im - z.im};
  return {tgc_cosh(z.re) * tgc_cos(z.im), tgc_sinh(z.re) * tgc_sin(z.im)};
}
TGC_COMPLEX(tgc_sin)(tgc_complex<T> z) {
  tgc_complex<T> turned = tgc_sinh(tgc_complex<T>(-z.im, z.re));
  return {turned.im, -turned.re};
}
TGC_COMPLEX(tgc_cos)(tgc_complex<T> z) { return tgc_cosh(tgc_complex<T>(-z.im, z.re)); }
// Kahan's form (1987), in which nothing cancels.
TGC_COMPLEX(tgc_tanh)(tgc_complex<T> z) {
  if (tgc_isnan(z.re) && z.im == T(0)) return z;
  if (!tgc_isfinite(z.im) && !tgc_isinf(z.re)) {
    T none = z.im - z.im;
    return {z.re == T(0) ? z.re : none, none};
  }
  T size = tgc_fabs(z.re);
  if (size > T(sizeof(T) == 4 ? 11 : 22)) {
    T small = tgc_exp(-size), part = T(4) * tgc_sin(z.im) * tgc_cos(z.im) * small * small;
    if (tgc_isinf(size)) part = tgc_copysign(T(0), tgc_isfinite(z.im) ? part : z.im);
    return {tgc_copysign(T(1), z.re), part};
  }
  T t = tgc_tan(z.im), slope = T(1) + t * t, s = tgc_sinh(z.re), c = tgc_sqrt(T(1) + s * s);
  T over = T(1) + slope * s * s;
  return {slope * c * s / over, t / over};
}
TGC_COMPLEX(tgc_tan)(tgc_complex<T> z) {
  tgc_complex<T> turned = tgc_tanh(tgc_complex<T>(-z.im, z.re));
  return {turned.im, -turned.re};
}
TGC_COMPLEX(tgc_rsqrt)(tgc_complex<T> z) { return tgc_complex<T>(T(1)) / tgc_sqrt(z); }
TGC_COMPLEX(tgc_log2)(tgc_complex<T> z) {
  tgc_complex<T> natural = tgc_log(z);
  return {natural.re * T(1.4426950408889634), natural.im * T(1.4426950408889634)};
}
// By the power that does not overflow.
TGC_COMPLEX(tgc_sigmoid)(tgc_complex<T> z) {
  bool left = z.re < T(0);
  tgc_complex<T> small = tgc_exp(left ? z : -z), one = T(1);
  return (left ? small : one) / (one + small);
}
// exp(z) - 1 where that does not cancel.
TGC_COMPLEX(tgc_expm1)(tgc_complex<T> z) {
  tgc_complex<T> power = tgc_exp(z);
  if (!(tgc_fabs(z.re) <= T(1))) return {power.re - T(1), power.im};
  T half = tgc_sin(z.im / T(2));
  return {tgc_expm1(z.re) * tgc_cos(z.im) - T(2) * half * half + T(0), power.im};
}
TGC_COMPLEX(tgc_log1p)(tgc_complex<T> z) {
  tgc_complex<T> far = tgc_log(tgc_complex<T>(z.re + T(1), z.im));
  if (!(tgc_fabs(z.re) <= T(0.5) && tgc_fabs(z.im) <= T(0.5))) return far;
  return {T(0.5) * tgc_log1p(z.re * (T(2) + z.re) + z.im * z.im), far.im};
}
// Inverse functions after Kahan (1987): from sqrt(1 + z) and sqrt(1 - z), whose products do not
// cancel. An infinite part decides the angle alone: it counts as 1, and finite parts as 0.
template <class T> TGC_DEVICE T tgc_at_infinity(T x) {
  return tgc_isinf(x) ? tgc_copysign(T(1), x) : tgc_isnan(x) ? x : tgc_copysign(T(0), x);
}
TGC_COMPLEX(tgc_asin)(tgc_complex<T> z) {
  if (tgc_isinf(z.re) || tgc_isinf(z.im)) {
    T angle = tgc_atan2(tgc_at_infinity(z.re), tgc_fabs(tgc_at_infinity(z.im)));
    return {angle, tgc_copysign(T(INFINITY), z.im)};
  }
  if (z.re == T(0) && tgc_isnan(z.im)) return z;
  tgc_complex<T> more = tgc_sqrt(tgc_complex<T>(T(1) + z.re, z.im));
  tgc_complex<T> less = tgc_sqrt(tgc_complex<T>(T(1) - z.re, -z.im));
  return {tgc_atan2(z.re, tgc_fabs(more.re * less.re - more.im * less.im)),
          tgc_asinh(less.re * more.im - less.im * more.re)};
}
TGC_COMPLEX(tgc_acos)(tgc_complex<T> z) {
  if (tgc_isinf(z.re) || tgc_isinf(z.im)) {
    T angle = tgc_atan2(tgc_fabs(tgc_at_infinity(z.im)), tgc_at_infinity(z.re));
    return {angle, -tgc_copysign(T(INFINITY), z.im)};
  }
  if (z.re == T(0) && tgc_isnan(z.im)) return {T(1.5707963267948966), z.im};
  tgc_complex<T> more = tgc_sqrt(tgc_complex<T>(T(1) + z.re, z.im));
  tgc_complex<T> less = tgc_sqrt(tgc_complex<T>(T(1) - z.re, -z.im));
  return {T(2) * tgc_atan2(less.re, more.re), tgc_asinh(more.re * less.im - more.im * less.re)};
}
// Far out 1 / z, beside the angle of i pi / 2; near the poles a difference of logarithms.
TGC_COMPLEX(tgc_atanh)(tgc_complex<T> z) {
  T half_pi = tgc_copysign(T(1.5707963267948966), z.im);
  if (tgc_isinf(z.re) || tgc_isinf(z.im)) {
    return {tgc_copysign(T(0), z.re), tgc_isnan(z.im) ? z.im : half_pi};
  }
  if (z.re == T(0) && tgc_isnan(z.im)) return z;
  T a = tgc_fabs(z.re), b = tgc_fabs(z.im);
  if (tgc_max(a, b) > T(sizeof(T) == 4 ? 1e4 : 1e8)) {
    tgc_complex<T> inverse = tgc_complex<T>(T(1)) / z;
    return {tgc_copysign(inverse.re, z.re), half_pi + inverse.im};
  }
  T apart = tgc_hypot(T(1) - a, b), square = (T(1) - a) * (T(1) - a) + b * b;
  T size = apart < T(0.1) ? T(0.5) * (tgc_log(tgc_hypot(T(1) + a, b)) - tgc_log(apart))
                          : T(0.25) * tgc_log1p(T(4) * a / square);
  T angle = T(0.5) * tgc_atan2(T(2) * z.im, (T(1) - a) * (T(1) + a) - b * b);
  return {tgc_copysign(size, z.re), angle};
}
TGC_COMPLEX(tgc_atan)(tgc_complex<T> z) {
  tgc_complex<T> turned = tgc_atanh(tgc_complex<T>(-z.im, z.re));
  return {turned.im, -turned.re};
}
TGC_COMPLEX(tgc_asinh)(tgc_complex<T> z) {
  tgc_complex<T> turned = tgc_asin(tgc_complex<T>(-z.im, z.re));
  return {turned.im, -turned.re};
}
TGC_COMPLEX(tgc_acosh)(tgc_complex<T> z) {
  tgc_complex<T> turned = tgc_acos(z);
  return {tgc_fabs(turned.im), tgc_copysign(turned.re, z.im)};
}
#undef TGC_COMPLEX
