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
  if (size == T(0)) return {T(0), T(0)};
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
  return {tgc_sinh(z.re) * tgc_cos(z.im), tgc_cosh(z.re) * tgc_sin(z.im)};
}
TGC_COMPLEX(tgc_cosh)(tgc_complex<T> z) {
  if (z.im == T(0)) return {tgc_cosh(z.re), z.re < T(0) ? -z.im : z.im};
  return {tgc_cosh(z.re) * tgc_cos(z.im), tgc_sinh(z.re) * tgc_sin(z.im)};
}
TGC_COMPLEX(tgc_sin)(tgc_complex<T> z) {
  tgc_complex<T> turned = tgc_sinh(tgc_complex<T>(-z.im, z.re));
  return {turned.im, -turned.re};
}
TGC_COMPLEX(tgc_cos)(tgc_complex<T> z) { return tgc_cosh(tgc_complex<T>(-z.im, z.re)); }
// Kahan's form (1987), in which nothing cancels.
TGC_COMPLEX(tgc_tanh)(tgc_complex<T> z) {
  T size = tgc_fabs(z.re);
  if (size > T(sizeof(T) == 4 ? 11 : 22)) {
    T small = tgc_exp(-size), part = T(4) * tgc_sin(z.im) * tgc_cos(z.im) * small * small;
    return {tgc_copysign(T(1), z.re), tgc_isinf(size) ? tgc_copysign(T(0), part) : part};
  }
  T t = tgc_tan(z.im), slope = T(1) + t * t, s = tgc_sinh(z.re), c = tgc_sqrt(T(1) + s * s);
  T over = T(1) + slope * s * s;
  return {slope * c * s / over, t / over};
}
#undef TGC_COMPLEX
