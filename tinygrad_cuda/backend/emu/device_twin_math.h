// CUDA's built-in vector types, bit casts, integer intrinsics and mathematical functions in plain
// C++, as far as the C library does not have them under the same name.

#pragma once

// ---------------------------------------------------------------------------------- vector types

#define TGC_EMU_VECTORS(NAME, T) \
  struct alignas(2 * sizeof(T)) NAME##2 { T x, y; }; \
  struct NAME##3 { T x, y, z; }; \
  struct alignas(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) NAME##4 { T x, y, z, w; }; \
  static inline NAME##2 make_##NAME##2(T x, T y) { return {x, y}; } \
  static inline NAME##3 make_##NAME##3(T x, T y, T z) { return {x, y, z}; } \
  static inline NAME##4 make_##NAME##4(T x, T y, T z, T w) { return {x, y, z, w}; }
TGC_EMU_VECTORS(char, signed char)
TGC_EMU_VECTORS(uchar, unsigned char)
TGC_EMU_VECTORS(short, short)
TGC_EMU_VECTORS(ushort, unsigned short)
TGC_EMU_VECTORS(int, int)
TGC_EMU_VECTORS(uint, unsigned)
TGC_EMU_VECTORS(longlong, long long)
TGC_EMU_VECTORS(ulonglong, unsigned long long)
TGC_EMU_VECTORS(float, float)
TGC_EMU_VECTORS(double, double)

// ---------------------------------------------------------------------- bits, integer arithmetic

#define TGC_EMU_BITS(NAME, TO, FROM) \
  static __forceinline__ TO NAME(FROM value) { \
    TO result; \
    memcpy(&result, &value, sizeof result); \
    return result; \
  }
TGC_EMU_BITS(__float_as_int, int, float)
TGC_EMU_BITS(__float_as_uint, unsigned, float)
TGC_EMU_BITS(__int_as_float, float, int)
TGC_EMU_BITS(__uint_as_float, float, unsigned)
TGC_EMU_BITS(__double_as_longlong, long long, double)
TGC_EMU_BITS(__longlong_as_double, double, long long)

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(unsigned x) { return x ? __builtin_clz(x) : 32; }
static inline int __clzll(unsigned long long x) { return x ? __builtin_clzll(x) : 64; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline unsigned __brev(unsigned x) {
  x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
  x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
  x = (x >> 4 & 0x0f0f0f0fu) | (x & 0x0f0f0f0fu) << 4;
  return __builtin_bswap32(x);
}
static inline unsigned __umulhi(unsigned a, unsigned b) {
  return (unsigned)((unsigned long long)a * b >> 32);
}
static inline int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((unsigned __int128)a * b >> 64);
}
static inline long long __mul64hi(long long a, long long b) {
  return (long long)((__int128)a * b >> 64);
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return (unsigned)((((unsigned long long)high << 32 | low) << (shift & 31)) >> 32);
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return (unsigned)(((unsigned long long)high << 32 | low) >> (shift & 31));
}

// ------------------------------------------------------------------------ single float operations
// Everything is compiled without contraction, so that plain operators round by themselves.

#define TGC_EMU_ROUNDED(F, D, OP) \
  static __forceinline__ float F(float a, float b) { return a OP b; } \
  static __forceinline__ double D(double a, double b) { return a OP b; }
TGC_EMU_ROUNDED(__fadd_rn, __dadd_rn, +)
TGC_EMU_ROUNDED(__fsub_rn, __dsub_rn, -)
TGC_EMU_ROUNDED(__fmul_rn, __dmul_rn, *)
TGC_EMU_ROUNDED(__fdiv_rn, __ddiv_rn, /)
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
static inline float __fsqrt_rn(float a) { return sqrtf(a); }
static inline double __dsqrt_rn(double a) { return sqrt(a); }
static inline float __frcp_rn(float a) { return 1.0f / a; }
static inline float __fdividef(float a, float b) { return a / b; }
// Macros, since glibc declares functions of these names.
#define __expf expf
#define __logf logf
#define __log2f log2f
#define __sinf sinf
#define __cosf cosf
#define __powf powf
static inline float __saturatef(float a) { return a > 0.0f ? (a < 1.0f ? a : 1.0f) : 0.0f; }

// ------------------------------------------------------------------------------------- functions

static inline void sincospi(double x, double* s, double* c) {
  *s = sin(3.141592653589793 * x);
  *c = cos(3.141592653589793 * x);
}
static inline void sincospif(float x, float* s, float* c) {
  double sine, cosine;
  sincospi(x, &sine, &cosine);
  *s = (float)sine;
  *c = (float)cosine;
}
static inline double tgc_emu_rsqrt(double x) { return 1.0 / sqrt(x); }
static inline float tgc_emu_rsqrt(float x) { return (float)tgc_emu_rsqrt((double)x); }
// Macros, since glibc declares functions of these names from 2.43 on.
#define rsqrt tgc_emu_rsqrt
#define rsqrtf tgc_emu_rsqrt

// The inverse of erf: a first guess from the tail's logarithm, then Halley's steps, on erfc where
// erf has no digits left.
static inline double erfinv(double x) {
  double size = fabs(x);
  if (!(size < 1.0)) return size == 1.0 ? copysign(HUGE_VAL, x) : __builtin_nan("");
  double tail = log((1.0 - size) * (1.0 + size)), half = 4.3307467508 + 0.5 * tail;
  double y = sqrt(sqrt(half * half - tail / 0.147) - half);
  for (int step = 0; step < 3; step++) {
    double error = size < 0.5 ? erf(y) - size : (1.0 - size) - erfc(y);
    double newton = error / (1.1283791670955126 * exp(-y * y));
    y -= newton / (1.0 + y * newton);
  }
  return copysign(y, x);
}
static inline float erfinvf(float x) { return (float)erfinv((double)x); }

static inline float erfinv(float x) { return erfinvf(x); }

// CUDA overloads these for float as C++ does. Where an include path in the environment brings in
// the C++ library's math.h after all, they are there already.
#if !defined(_GLIBCXX_MATH_H) && !defined(_LIBCPP_MATH_H)
#define TGC_EMU_FLOAT1(NAME) static inline float NAME(float x) { return NAME##f(x); }
TGC_EMU_FLOAT1(exp) TGC_EMU_FLOAT1(exp2) TGC_EMU_FLOAT1(expm1)
TGC_EMU_FLOAT1(log) TGC_EMU_FLOAT1(log2) TGC_EMU_FLOAT1(log10) TGC_EMU_FLOAT1(log1p)
TGC_EMU_FLOAT1(sqrt) TGC_EMU_FLOAT1(cbrt)
TGC_EMU_FLOAT1(sin) TGC_EMU_FLOAT1(cos) TGC_EMU_FLOAT1(tan)
TGC_EMU_FLOAT1(asin) TGC_EMU_FLOAT1(acos) TGC_EMU_FLOAT1(atan)
TGC_EMU_FLOAT1(sinh) TGC_EMU_FLOAT1(cosh) TGC_EMU_FLOAT1(tanh)
TGC_EMU_FLOAT1(asinh) TGC_EMU_FLOAT1(acosh) TGC_EMU_FLOAT1(atanh)
TGC_EMU_FLOAT1(erf) TGC_EMU_FLOAT1(erfc)
TGC_EMU_FLOAT1(lgamma) TGC_EMU_FLOAT1(tgamma)
TGC_EMU_FLOAT1(floor) TGC_EMU_FLOAT1(ceil) TGC_EMU_FLOAT1(trunc) TGC_EMU_FLOAT1(rint)
TGC_EMU_FLOAT1(round) TGC_EMU_FLOAT1(fabs)

#define TGC_EMU_FLOAT2(NAME) static inline float NAME(float x, float y) { return NAME##f(x, y); }
TGC_EMU_FLOAT2(pow) TGC_EMU_FLOAT2(atan2) TGC_EMU_FLOAT2(fmod) TGC_EMU_FLOAT2(hypot)
TGC_EMU_FLOAT2(copysign) TGC_EMU_FLOAT2(nextafter) TGC_EMU_FLOAT2(fmin) TGC_EMU_FLOAT2(fmax)
static inline float fma(float x, float y, float z) { return fmaf(x, y, z); }
#endif

#define TGC_EMU_EXTREMES(T) \
  static inline T min(T a, T b) { return b < a ? b : a; } \
  static inline T max(T a, T b) { return a < b ? b : a; }
TGC_EMU_EXTREMES(int)
TGC_EMU_EXTREMES(unsigned)
TGC_EMU_EXTREMES(long long)
TGC_EMU_EXTREMES(unsigned long long)
static inline float min(float a, float b) { return fminf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }
