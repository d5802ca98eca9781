// The prelude that stands before every generated kernel: storage types, checked global memory,
// conversions, arithmetic with NumPy's meaning, warp and block reductions. Header-free CUDA C++17
// (NVRTC, sm_75 and up); the emulator compiles the same text with a C++ compiler, where
// device_twin.h supplies what CUDA has built in and TGC_EMULATOR is defined.
//
// Words used below. A *storage type* is what lies in memory (float, double, tgc_half, tgc_bfloat16,
// signed char, short, int, long long, these four unsigned, bool). Its *compute type* is what expressions
// work on: float for the 16-bit floating types, the type itself for all others.

#define TGC_DEVICE __device__ __forceinline__

#undef INFINITY
#undef NAN
#define INFINITY (__int_as_float(0x7f800000))
#define NAN (__int_as_float(0x7fc00000))

// ---------------------------------------------------------------------------------------- types

struct tgc_half { unsigned short bits; };
struct tgc_bfloat16 { unsigned short bits; };

template <class T> struct tgc_compute { typedef T type; };
template <> struct tgc_compute<tgc_half> { typedef float type; };
template <> struct tgc_compute<tgc_bfloat16> { typedef float type; };
template <class T> using tgc_compute_t = typename tgc_compute<T>::type;

// N values read or written by one access; 2, 4, 8 or 16 bytes in all.
template <class T, int N> struct alignas(sizeof(T) * N) tgc_vector {
  static_assert(N > 0 && (N & (N - 1)) == 0 && sizeof(T) * N <= 16, "a vector has 1 to 16 bytes");
  T at[N];
};

template <class A, class B> struct tgc_same { static constexpr bool value = false; };
template <class A> struct tgc_same<A, A> { static constexpr bool value = true; };
template <class T> struct tgc_is_floating {
  static constexpr bool value = tgc_same<T, float>::value || tgc_same<T, double>::value;
};
template <class T> struct tgc_is_complex { static constexpr bool value = false; };  // complex.cuh
template <class...> using tgc_void = void;

// Lowest and highest value of a compute type: the identities of max and min.
template <class T> TGC_DEVICE T tgc_lowest() {
  if constexpr (tgc_is_floating<T>::value) return T(-INFINITY);
  else if constexpr (T(-1) > T(0)) return T(0);  // unsigned and bool
  else return T(1ull << (sizeof(T) * 8 - 1));
}
template <class T> TGC_DEVICE T tgc_highest() {
  if constexpr (tgc_is_floating<T>::value) return T(INFINITY);
  else if constexpr (T(-1) > T(0)) return T(-1);
  else return T((1ull << (sizeof(T) * 8 - 1)) - 1);
}

// ------------------------------------------------------------------------- 16-bit floating types
// Round to nearest, ties to even; a NaN becomes 0x7fff, as the hardware's conversion makes it.

#ifdef TGC_EMULATOR
TGC_DEVICE unsigned short tgc_half_bits(float value) {
  unsigned bits = __float_as_uint(value), sign = (bits >> 16) & 0x8000u;
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) return 0x7fff;
  if (bits >= 0x477ff000u) return sign | 0x7c00u;  // 65520 and more round to infinity
  if (bits < 0x38800000u)  // subnormal: 0.5f has the unit 2**-24 that a subnormal half has
    return sign | (__float_as_uint(__uint_as_float(bits) + 0.5f) - 0x3f000000u);
  return sign | ((bits + 0xc8000fffu + ((bits >> 13) & 1u)) >> 13);
}
TGC_DEVICE float tgc_half_value(unsigned short half) {
  unsigned sign = (half & 0x8000u) << 16, magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u) return __uint_as_float(sign | 0x7f800000u | (magnitude << 13));
  if (magnitude < 0x0400u) {
    float value = float(magnitude) * 5.9604644775390625e-8f;  // 2**-24
    return sign ? -value : value;
  }
  return __uint_as_float(sign | ((magnitude << 13) + 0x38000000u));
}
#else
TGC_DEVICE unsigned short tgc_half_bits(float value) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
TGC_DEVICE float tgc_half_value(unsigned short half) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
  return value;
}
#endif

TGC_DEVICE unsigned short tgc_bfloat16_bits(float value) {
#if !defined(TGC_EMULATOR) && __CUDA_ARCH__ >= 800
  unsigned pair;  // the conversion of two at once is one quick instruction, that of one is not
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(0.0f), "f"(value));
  return (unsigned short)pair;
#else
  unsigned bits = __float_as_uint(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return (unsigned short)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
#endif
}

// A double on its way to 16 bits: rounded to odd, so that the second rounding cannot err.
TGC_DEVICE float tgc_round_to_odd(double value) {
  float nearest = float(value);
  if (value != value || double(nearest) == value) return nearest;
  unsigned bits = __float_as_uint(nearest);
  if (fabs(double(nearest)) > fabs(value)) bits -= 1;  // back toward zero
  return __uint_as_float(bits | 1u);
}

TGC_DEVICE float tgc_to_compute(tgc_half value) { return tgc_half_value(value.bits); }
TGC_DEVICE float tgc_to_compute(tgc_bfloat16 value) {
  return __uint_as_float((unsigned)value.bits << 16);
}
template <class T> TGC_DEVICE T tgc_to_compute(T value) { return value; }

// An element of a vector; `lane` is a constant once its loop is unrolled.
template <class T, int N>
TGC_DEVICE tgc_compute_t<T> tgc_element(const tgc_vector<T, N>& vector, int lane) {
  if constexpr (tgc_same<T, tgc_bfloat16>::value && N > 1) {  // one instruction for either half
    unsigned pair;
    memcpy(&pair, &vector.at[lane / 2 * 2], 4);
    return __uint_as_float(lane % 2 ? pair & 0xffff0000u : pair << 16);
  } else {
    return tgc_to_compute(vector.at[lane]);
  }
}

// ----------------------------------------------------------------------------------- conversions
// To integers: truncate toward zero. What does not fit, and NaN, becomes the lowest int32 (int64
// for a 64-bit target), as NumPy gives on x86-64; smaller integers are the low bits of that int32,
// uint32 those of an int64. From 2**63 on uint64 has the number, and from 2**64 on 0.
// To bool: value != 0, so that NaN is true. Integers to 16-bit floats go through float32.

TGC_DEVICE int tgc_to_int(float value) {
  return value >= -2147483648.0f && value < 2147483648.0f ? int(value) : int(0x80000000u);
}
TGC_DEVICE int tgc_to_int(double value) {
  return value > -2147483649.0 && value < 2147483648.0 ? int(value) : int(0x80000000u);
}
template <class F> TGC_DEVICE long long tgc_to_long(F value) {
  return value >= F(-9223372036854775808.0) && value < F(9223372036854775808.0)
             ? (long long)value : (long long)(0x8000000000000000ull);
}

template <class F> TGC_DEVICE unsigned long long tgc_to_unsigned_long(F value) {
  bool high = value >= F(9223372036854775808.0);
  unsigned long long low = (unsigned long long)tgc_to_long(
      high ? value - F(9223372036854775808.0) : value);
  return low ^ ((unsigned long long)high << 63);
}

// The storage form of a compute value.
template <class To, class From> TGC_DEVICE To tgc_to_storage(From value) {
  if constexpr (tgc_same<To, From>::value) {
    return value;
  } else if constexpr (tgc_same<From, tgc_half>::value || tgc_same<From, tgc_bfloat16>::value) {
    return tgc_to_storage<To>(tgc_to_compute(value));
  } else if constexpr (tgc_is_complex<To>::value) {
    return To(value);
  } else if constexpr (tgc_same<To, tgc_half>::value) {
    if constexpr (!tgc_same<From, double>::value) {
      return To{tgc_half_bits(float(value))};
    } else {
#ifdef TGC_EMULATOR
      return To{tgc_half_bits(tgc_round_to_odd(value))};
#else
      To result;
      asm("cvt.rn.f16.f64 %0, %1;" : "=h"(result.bits) : "d"(value));
      return result;
#endif
    }
  } else if constexpr (tgc_same<To, tgc_bfloat16>::value) {
    if constexpr (tgc_same<From, double>::value)
      return To{tgc_bfloat16_bits(tgc_round_to_odd(value))};
    else return To{tgc_bfloat16_bits(float(value))};
  } else if constexpr (tgc_same<To, bool>::value) {
    return value != From(0);
  } else if constexpr (tgc_is_floating<From>::value && !tgc_is_floating<To>::value) {
    if constexpr (tgc_same<To, unsigned long long>::value) return tgc_to_unsigned_long(value);
    else if constexpr (sizeof(To) == 8 || tgc_same<To, unsigned>::value)
      return To(tgc_to_long(value));
    else return To(tgc_to_int(value));
  } else {
    return To(value);
  }
}

// Floats as a vector of a 16-bit type, of which the hardware rounds two at once, or as they are.
template <class T, int N> TGC_DEVICE tgc_vector<T, N> tgc_rounded(const float (&values)[N]) {
  tgc_vector<T, N> vector;
#if !defined(TGC_EMULATOR) && __CUDA_ARCH__ >= 800
  if constexpr (N == 1 || tgc_same<T, float>::value) {
#pragma unroll
    for (int i = 0; i < N; i++) vector.at[i] = tgc_to_storage<T>(values[i]);
    return vector;
  }
#pragma unroll
  for (int i = 0; i + 1 < N; i += 2) {
    unsigned pair;
    if constexpr (tgc_same<T, tgc_bfloat16>::value)
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(values[i + 1]), "f"(values[i]));
    else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(values[i + 1]), "f"(values[i]));
    memcpy(&vector.at[i], &pair, 4);
  }
#else
  for (int i = 0; i < N; i++) vector.at[i] = tgc_to_storage<T>(values[i]);
#endif
  return vector;
}

// The value as storage type T would hold it, in T's compute type: what a cast to T means.
template <class T, class From> TGC_DEVICE tgc_compute_t<T> tgc_cast(From value) {
#if !defined(TGC_EMULATOR) && __CUDA_ARCH__ >= 800
  if constexpr (tgc_same<T, tgc_bfloat16>::value && tgc_same<From, float>::value) {
    unsigned upper;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(upper) : "f"(value), "f"(0.0f));
    return __uint_as_float(upper);
  }
#endif
  return tgc_to_compute(tgc_to_storage<T>(value));
}

// --------------------------------------------------------------------------------- global memory
// `index` counts elements of T from `base`; `count` of them are touched at once and lie aligned to
// their common size. The emulator checks every access against the buffers of the launch; on CUDA
// this is plain pointer arithmetic.

template <class T, class I> TGC_DEVICE const T* tgc_address(const T* base, I index, int count = 1) {
#ifdef TGC_EMULATOR
  tgc_emu_check(base, (long long)index, count, sizeof(T), false);
#endif
  return base + index;
}
template <class T, class I> TGC_DEVICE T* tgc_address_write(T* base, I index, int count = 1) {
#ifdef TGC_EMULATOR
  tgc_emu_check(base, (long long)index, count, sizeof(T), true);
#endif
  return base + index;
}

template <class T, class I> TGC_DEVICE tgc_compute_t<T> tgc_load(const T* base, I index) {
  return tgc_to_compute(*tgc_address(base, index));
}
template <class T, class I, class V> TGC_DEVICE void tgc_store(T* base, I index, V value) {
  *tgc_address_write(base, index) = tgc_to_storage<T>(value);
}
template <int N, class T, class I>
TGC_DEVICE tgc_vector<T, N> tgc_load_vector(const T* base, I index) {
  return *reinterpret_cast<const tgc_vector<T, N>*>(tgc_address(base, index, N));
}
// The same where `inside` holds, and zeros elsewhere. The empty assembly hides the zeros: the
// compiler would convert a value in the test's branch, and each load wait for the one before.
template <int N, class T, class I>
TGC_DEVICE tgc_vector<T, N> tgc_load_vector_if(bool inside, const T* base, I index) {
  tgc_vector<T, N> vector{};
  if (inside) vector = tgc_load_vector<N>(base, index);
#ifndef TGC_EMULATOR
  constexpr int bytes = N * int(sizeof(T));
  if constexpr (bytes == 2) {
    unsigned short half;
    memcpy(&half, &vector, 2);
    asm("" : "+h"(half));
    memcpy(&vector, &half, 2);
  } else {
    unsigned words[bytes / 4];
    memcpy(words, &vector, bytes);
#pragma unroll
    for (int i = 0; i < bytes / 4; i++) asm("" : "+r"(words[i]));
    memcpy(&vector, words, bytes);
  }
#endif
  return vector;
}
template <class T, class I>
TGC_DEVICE tgc_compute_t<T> tgc_load_if(bool inside, const T* base, I index) {
  return tgc_to_compute(tgc_load_vector_if<1>(inside, base, index).at[0]);
}
template <class T, int N, class I>
TGC_DEVICE void tgc_store_vector(T* base, I index, const tgc_vector<T, N>& value) {
  *reinterpret_cast<tgc_vector<T, N>*>(tgc_address_write(base, index, N)) = value;
}

// Stores a vector in shared memory, and has its value.
template <class T, int N>
TGC_DEVICE tgc_vector<T, N> tgc_stage_vector(tgc_vector<T, N>* target, const tgc_vector<T, N>& value) {
  *target = value;
  return value;
}

// A load of a vector whose lines leave the L2 cache after all that is not so marked, from sm_80 on.
// The compiler's own property leaves it an ordinary load: as one of read-only memory, or in
// assembly, it and others move across stores and take registers. The policy is the one that
// createpolicy.fractional.L2::evict_last makes of all lines; as a constant it takes none either.
#if !defined(TGC_EMULATOR) && __CUDA_ARCH__ >= 800
extern "C" __device__ void* __nv_associate_access_property(const void*, unsigned long long);
#define TGC_LASTING 0x14f0000000000000ull
#endif
template <int N, class T, class I>
TGC_DEVICE tgc_vector<T, N> tgc_load_vector_lasting(const T* base, I index) {
#if !defined(TGC_EMULATOR) && __CUDA_ARCH__ >= 800
  const void* address = __nv_associate_access_property(base + index, TGC_LASTING);
  return *reinterpret_cast<const tgc_vector<T, N>*>(address);
#else
  return tgc_load_vector<N>(base, index);
#endif
}

// Copies to shared memory that a thread issues, in groups that it commits one after another, and
// waits for until no more than PENDING groups are in flight. What other threads read of them needs
// a barrier besides. Below sm_80 a copy is made where it is issued.
template <int N, class T, class I>
TGC_DEVICE void tgc_copy_ahead(tgc_vector<T, N>* target, const T* base, I index) {
#if !defined(TGC_EMULATOR) && __CUDA_ARCH__ >= 800
  unsigned address = (unsigned)__cvta_generic_to_shared(target);
  constexpr int bytes = N * int(sizeof(T));
  if constexpr (bytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                 :: "r"(address), "l"(base + index) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;"
                 :: "r"(address), "l"(base + index), "n"(bytes) : "memory");
#elif defined(TGC_EMULATOR)
  tgc_emu_copy_async(target, tgc_address(base, index, N), N * int(sizeof(T)));
#else
  *target = tgc_load_vector<N>(base, index);
#endif
}
// The same from lines that are marked as above, of which the thread at its beginning sends for each.
// A copy can carry the mark itself, but then compute-sanitizer (CUDA 13.0) finds what is not there.
template <int N, class T, class I>
TGC_DEVICE void tgc_copy_ahead_lasting(tgc_vector<T, N>* target, const T* base, I index) {
#if !defined(TGC_EMULATOR) && __CUDA_ARCH__ >= 800
  if (threadIdx.x * (N * int(sizeof(T))) % 128 == 0)
    asm volatile("prefetch.global.L2::evict_last [%0];" :: "l"(base + index) : "memory");
#endif
  tgc_copy_ahead(target, base, index);
}
TGC_DEVICE void tgc_copy_commit() {
#if !defined(TGC_EMULATOR) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#elif defined(TGC_EMULATOR)
  tgc_emu_copy_commit();
#endif
}
template <int PENDING> TGC_DEVICE void tgc_copy_wait() {
#if !defined(TGC_EMULATOR) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory");
#elif defined(TGC_EMULATOR)
  tgc_emu_copy_wait(PENDING);
#endif
}

// The same number, which the compiler takes for another: it computes again what follows from it
// rather than keep that in registers through a loop.
TGC_DEVICE int tgc_again(int number) {
#ifndef TGC_EMULATOR
  asm volatile("" : "+r"(number));
#endif
  return number;
}

// `index` if 0 <= index < limit; else 0, and the first bad index of the launch is recorded as
// error = {code + 1, index, limit, position, address of a copy in host memory or 0, ...}, 8 words.
TGC_DEVICE void tgc_report(long long index, long long limit, unsigned long long* error,
                           long long code, long long position) {
  if (atomicCAS(tgc_address_write(error, 0), 0ull, (unsigned long long)(code + 1)) == 0ull) {
    tgc_store(error, 1, (unsigned long long)index);
    tgc_store(error, 2, (unsigned long long)limit);
    tgc_store(error, 3, (unsigned long long)position);
    auto* host = (unsigned long long*)tgc_load(error, 4);
    if (host) {  // the host looks at this copy without waiting or asking for one
      host[1] = (unsigned long long)index;
      host[2] = (unsigned long long)limit;
      host[3] = (unsigned long long)position;
      host[0] = (unsigned long long)(code + 1);
    }
  }
}

TGC_DEVICE long long tgc_check_index(long long index, long long limit, unsigned long long* error,
                                     long long code, long long position = 0) {
  if (index >= 0 && index < limit) return index;
  tgc_report(index, limit, error, code, position);
  return 0;
}

// `x`; if not 0 <= x <= 1, its bits as a double are recorded in place of an index.
TGC_DEVICE double tgc_check_unit(double x, unsigned long long* error, long long code,
                                 long long position) {
  if (!(x >= 0.0 && x <= 1.0)) tgc_report(__double_as_longlong(x), 1, error, code, position);
  return x;
}
TGC_DEVICE float tgc_check_unit(float x, unsigned long long* error, long long code,
                                long long position) {
  if (!(x >= 0.0f && x <= 1.0f)) tgc_check_unit((double)x, error, code, position);
  return x;
}

// ------------------------------------------------------------------------------------ arithmetic

// The library's functions, overloaded for float and double.
#define TGC_MATH1(NAME) \
  TGC_DEVICE float tgc_##NAME(float x) { return NAME##f(x); } \
  TGC_DEVICE double tgc_##NAME(double x) { return NAME(x); }
#define TGC_MATH2(NAME) \
  TGC_DEVICE float tgc_##NAME(float x, float y) { return NAME##f(x, y); } \
  TGC_DEVICE double tgc_##NAME(double x, double y) { return NAME(x, y); }
TGC_MATH1(exp) TGC_MATH1(exp2) TGC_MATH1(expm1)
TGC_MATH1(log) TGC_MATH1(log2) TGC_MATH1(log10) TGC_MATH1(log1p)
TGC_MATH1(sqrt) TGC_MATH1(rsqrt) TGC_MATH1(cbrt)
TGC_MATH1(sin) TGC_MATH1(cos) TGC_MATH1(tan) TGC_MATH1(asin) TGC_MATH1(acos) TGC_MATH1(atan)
TGC_MATH1(sinh) TGC_MATH1(cosh) TGC_MATH1(tanh) TGC_MATH1(asinh) TGC_MATH1(acosh) TGC_MATH1(atanh)
TGC_MATH1(erf) TGC_MATH1(erfc) TGC_MATH1(erfinv) TGC_MATH1(lgamma) TGC_MATH1(tgamma)
TGC_MATH1(floor) TGC_MATH1(ceil) TGC_MATH1(trunc) TGC_MATH1(rint) TGC_MATH1(fabs)
TGC_MATH2(pow) TGC_MATH2(atan2) TGC_MATH2(fmod) TGC_MATH2(hypot) TGC_MATH2(copysign)
TGC_MATH2(nextafter)
#undef TGC_MATH1
#undef TGC_MATH2
// a * b + c in one rounding. Kernels are compiled without contraction, so that a value does not
// depend on what stands beside it: inner products say it, elementwise operations round each.
TGC_DEVICE float tgc_fma(float a, float b, float c) { return fmaf(a, b, c); }
TGC_DEVICE double tgc_fma(double a, double b, double c) { return fma(a, b, c); }
// A product that wraps: of two uint16 C makes one of int, which it overflows.
template <class T> TGC_DEVICE T tgc_product(T a, T b) {
  if constexpr (tgc_same<T, unsigned short>::value) return T(unsigned(a) * unsigned(b));
  else return T(a * b);
}
// A sum of products goes on by one; integers wrap. In assembly, since the compiler rotates a loop of
// its own fmaf with moves and more registers (64 instead of 56).
template <class T> TGC_DEVICE T tgc_multiply_add(T a, T b, T sum) {
#ifndef TGC_EMULATOR
  if constexpr (tgc_same<T, float>::value) {
    asm("fma.rn.f32 %0, %1, %2, %0;" : "+f"(sum) : "f"(a), "f"(b));
    return sum;
  }
#endif
  if constexpr (tgc_is_floating<T>::value) return tgc_fma(a, b, sum);
  else return T(sum + tgc_product(a, b));
}

// Rounded by themselves, whatever the compiler's options are.
TGC_DEVICE float tgc_add_rn(float a, float b) { return __fadd_rn(a, b); }
TGC_DEVICE double tgc_add_rn(double a, double b) { return __dadd_rn(a, b); }
TGC_DEVICE float tgc_sub_rn(float a, float b) { return __fsub_rn(a, b); }
TGC_DEVICE double tgc_sub_rn(double a, double b) { return __dsub_rn(a, b); }
TGC_DEVICE float tgc_mul_rn(float a, float b) { return __fmul_rn(a, b); }
TGC_DEVICE double tgc_mul_rn(double a, double b) { return __dmul_rn(a, b); }

template <class T> TGC_DEVICE bool tgc_isnan(T x) {
  if constexpr (tgc_is_floating<T>::value) return x != x;
  else return false;
}
template <class T> TGC_DEVICE bool tgc_isinf(T x) {
  if constexpr (tgc_is_floating<T>::value) return x == T(INFINITY) || x == T(-INFINITY);
  else return false;
}
template <class T> TGC_DEVICE bool tgc_isfinite(T x) { return !tgc_isnan(x) && !tgc_isinf(x); }

// np.maximum and np.minimum: a NaN on either side wins.
template <class T> TGC_DEVICE T tgc_max(T a, T b) { return a >= b || tgc_isnan(a) ? a : b; }
template <class T> TGC_DEVICE T tgc_min(T a, T b) { return a <= b || tgc_isnan(a) ? a : b; }
#if !defined(TGC_EMULATOR) && __CUDA_ARCH__ >= 800  // one instruction in place of four
TGC_DEVICE float tgc_max(float a, float b) {
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
  return a;
}
TGC_DEVICE float tgc_min(float a, float b) {
  asm("min.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
  return a;
}
#endif

// 1 / x for x >= 1, exact for 1; in float32 within the last place.
TGC_DEVICE double tgc_share_of(double x) { return 1 / x; }
TGC_DEVICE float tgc_share_of(float x) {
#ifdef TGC_EMULATOR
  return 1 / x;
#else
  float share;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(share) : "f"(x));
  return x == 1 ? 1 : share;
#endif
}

// Many quotients by one number: its reciprocal once, then a quotient and the correction that rounds
// it as division does, without division's branch. The divisor is made positive, so that -0 stays
// -0, and scaled where its reciprocal would overflow; an infinite one has the reciprocal 0. Of a
// dividend below 1e-32 the correction loses digits: the last place may be another one.
struct tgc_divisor {
  float value, reciprocal, scale;
};
TGC_DEVICE tgc_divisor tgc_divisor_of(float value) {
  float scale = tgc_copysign(tgc_fabs(value) < 1e-30f ? 1.8446744e19f : 1.0f, value);  // 2 ** 64
  value *= scale;
  float reciprocal = 1.0f / value;
  return {tgc_isinf(value) ? 1.0f : value, reciprocal, scale};
}
TGC_DEVICE float tgc_divide(float x, tgc_divisor by) {
  x *= by.scale;
  float quotient = x * by.reciprocal;
  float excess = tgc_fma(quotient, by.value, -x);
  float better = tgc_fma(-excess, by.reciprocal, quotient);
  return tgc_fabs(quotient) < float(INFINITY) ? better : quotient;
}
// For values stored in 16 bits: within a few parts in a million of the exact ones. What is
// below 2^-126 is 0: nothing in float16, and no share of a row whose largest power is 1.
TGC_DEVICE float tgc_exp_short(float x) {
#ifdef TGC_EMULATOR
  return tgc_exp(x);
#else
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x * 1.44269504f));
  return result;
#endif
}
TGC_DEVICE float tgc_sigmoid_short(float x) { return tgc_share_of(1.0f + tgc_exp_short(-x)); }
// The same with subnormal results, which bfloat16 has.
TGC_DEVICE float tgc_exp_bfloat16(float x) {
#ifdef TGC_EMULATOR
  return tgc_exp(x);
#else
  float result;
  asm("ex2.approx.f32 %0, %1;" : "=f"(result) : "f"(x * 1.44269504f));
  return result;
#endif
}
TGC_DEVICE float tgc_sigmoid_bfloat16(float x) {
  float small = tgc_exp_bfloat16(-tgc_fabs(x)), share = tgc_share_of(1.0f + small);
  return x < 0.0f ? small * share : share;
}
TGC_DEVICE float tgc_divide_short(float x, tgc_divisor by) {
#ifdef TGC_EMULATOR
  return tgc_divide(x, by);
#else
  return x * by.scale * by.reciprocal;
#endif
}

template <class T> TGC_DEVICE T tgc_abs(T x) {
  if constexpr (tgc_is_floating<T>::value) return tgc_fabs(x);
  else if constexpr (T(-1) > T(0)) return x;
  else return x < T(0) ? T(0ull - (unsigned long long)x) : x;  // the lowest value stays itself
}
template <class T> TGC_DEVICE T tgc_sign(T x) {
  if constexpr (!tgc_is_floating<T>::value && T(-1) > T(0)) return T(x != T(0));  // unsigned
  else return T((x > T(0)) - (x < T(0)));  // 0 for NaN
}

// Division that rounds down, and the remainder with the divisor's sign (Python's // and %).
// Integers: by zero gives 0; the lowest value by -1 wraps to itself, as in NumPy.
template <class T> TGC_DEVICE T tgc_remainder(T a, T b) {
  if constexpr (tgc_is_floating<T>::value) {
    T rest = tgc_fmod(a, b);
    if (b == T(0)) return rest;
    if (rest == T(0)) return tgc_copysign(T(0), b);
    return (b < T(0)) != (rest < T(0)) ? rest + b : rest;
  } else if constexpr (T(-1) > T(0)) {
    return b == T(0) ? T(0) : T(a % b);
  } else {
    if (b == T(0) || b == T(-1)) return T(0);
    T rest = T(a % b);
    return rest != T(0) && (rest < T(0)) != (b < T(0)) ? T(rest + b) : rest;
  }
}
template <class T> TGC_DEVICE T tgc_floor_divide(T a, T b) {
  if constexpr (tgc_is_floating<T>::value) {
    if (b == T(0)) return a / b;
    T rest = tgc_fmod(a, b), quotient = (a - rest) / b;
    if (rest != T(0) && (b < T(0)) != (rest < T(0))) quotient -= T(1);
    if (quotient == T(0)) return tgc_copysign(T(0), a / b);
    T down = tgc_floor(quotient);
    return quotient - down > T(0.5) ? down + T(1) : down;
  } else if constexpr (T(-1) > T(0)) {
    return b == T(0) ? T(0) : T(a / b);
  } else {
    if (b == T(0)) return T(0);
    if (b == T(-1)) return T(0ull - (unsigned long long)a);
    T quotient = T(a / b);
    return a % b != 0 && (a < T(0)) != (b < T(0)) ? T(quotient - 1) : quotient;
  }
}

// C's remainder, with the dividend's sign; integers by zero give 0.
template <class T> TGC_DEVICE T tgc_fmod(T a, T b) {
  if constexpr (!(T(-1) > T(0))) {
    if (b == T(-1)) return T(0);
  }
  return b == T(0) ? T(0) : T(a % b);
}

// Integer power, modulo 2**bits. A negative exponent gives the true result cut to an integer,
// which is 0 unless the base is 1 or -1.
template <class T> TGC_DEVICE T tgc_pow(T base, T exponent) {
  if constexpr (!(T(-1) > T(0))) {
    if (exponent < T(0))
      return base == T(1) ? T(1) : base != T(-1) ? T(0) : (exponent & 1) ? T(-1) : T(1);
  }
  unsigned long long result = 1, square = (unsigned long long)base;
  for (unsigned long long n = (unsigned long long)exponent; n != 0; n >>= 1, square *= square)
    if (n & 1) result *= square;
  return T(result);
}

// Shifts with NumPy's meaning for a count outside 0 .. bits - 1 (a negative one is huge unsigned).
template <class T> TGC_DEVICE T tgc_shift_left(T a, T count) {
  bool inside = (unsigned long long)count < sizeof(T) * 8;
  return inside ? T((unsigned long long)a << count) : T(0);
}
template <class T> TGC_DEVICE T tgc_shift_right(T a, T count) {
  if ((unsigned long long)count < sizeof(T) * 8) return T(a >> count);
  if constexpr (T(-1) > T(0)) return T(0);
  else return a < T(0) ? T(-1) : T(0);
}

// 1 / (1 + exp(-x)) without overflow, and exact to the last bits on both sides.
template <class T> TGC_DEVICE T tgc_sigmoid(T x) {
  T small = tgc_exp(-tgc_fabs(x));
  T part = x >= T(0) ? T(1) : x < T(0) ? small : x, whole = T(1) + small;
#ifndef TGC_EMULATOR
  if constexpr (sizeof(T) == 4) {  // `whole` is in [1, 2]: no case needs division's branch
    float reciprocal = tgc_share_of(whole), quotient = part * reciprocal;
    return tgc_fma(tgc_fma(-quotient, whole, part), reciprocal, quotient);
  }
#endif
  return part / whole;
}

// Derivative number n + 1 of log gamma, for x > -1000; n = 0 is digamma. In double throughout,
// since the recurrence and the reflection cancel.
TGC_DEVICE double tgc_digamma(double x) {
  if (x == 0.0) return tgc_copysign(double(INFINITY), -x);
  double result = 0.0;
  if (x < 0.0) {
    if (x == tgc_floor(x)) return NAN;
    double angle = 3.141592653589793 * (x - tgc_trunc(x));
    result = -3.141592653589793 / tgc_tan(angle);
    x = 1.0 - x;
  }
  for (; x < 10.0; x += 1.0) result -= 1.0 / x;
  double z = 1.0 / (x * x);
  double series = z * (1.0 / 12 - z * (1.0 / 120 - z * (1.0 / 252 - z * (1.0 / 240 -
                  z * (1.0 / 132 - z * (691.0 / 32760 - z / 12))))));
  return result + tgc_log(x) - 0.5 / x - series;
}
// The sum of (q + k)^-s over k >= 0, by Euler and Maclaurin.
TGC_DEVICE double tgc_zeta(double s, double q) {
  if (q <= 0.0 && q == tgc_floor(q)) return INFINITY;
  double total = 0.0;
  for (int k = 0; k < 12 || q < 12.0; k++, q += 1.0) total += tgc_pow(q, -s);
  double power = tgc_pow(q, -s), z = 1.0 / (q * q), factor = s * power / q;
  total += tgc_pow(q, 1.0 - s) / (s - 1.0) + 0.5 * power;  // q^-s may underflow
  const double terms[10] = {1.0 / 12, -1.0 / 720, 1.0 / 30240, -1.0 / 1209600, 1.0 / 47900160,
                            -691.0 / 1307674368000.0, 1.0 / 74724249600.0, -3617.0 / 10670622842880000.0,
                            43867.0 / 5109094217170944000.0, -174611.0 / 802857662698291200000.0};
  for (int k = 0; k < 10; k++) {
    total += terms[k] * factor;
    factor *= (s + 2 * k + 1) * (s + 2 * k + 2) * z;
  }
  return total;
}
template <class T> TGC_DEVICE T tgc_polygamma(long long n, T x) {
  if (!(x > T(-1000))) {  // whole numbers are poles
    if (n == 0 || x != tgc_floor(x)) return T(NAN);
    return n % 2 ? T(INFINITY) : T(-INFINITY);
  }
  if (n == 0) return T(tgc_digamma(double(x)));
  if (tgc_isinf(x)) return T(0);
  double sign = n % 2 ? 1.0 : -1.0;
  return T(sign * tgc_tgamma(double(n) + 1.0) * tgc_zeta(double(n) + 1.0, double(x)));
}

// ------------------------------------------------------------------- warp and block communication
// Blocks are one-dimensional, a multiple of 32 threads, and whole warps take part.

TGC_DEVICE int tgc_lane() { return threadIdx.x & 31; }
TGC_DEVICE int tgc_warp() { return threadIdx.x >> 5; }

// Shuffles of any trivially copyable value, word by word.
#define TGC_SHUFFLE(NAME, INTRINSIC) \
  template <class T> TGC_DEVICE T NAME(T value, int where) { \
    unsigned words[(sizeof(T) + 3) / 4]; \
    words[(sizeof(T) + 3) / 4 - 1] = 0; \
    memcpy(words, &value, sizeof(T)); \
    _Pragma("unroll") for (int i = 0; i < int((sizeof(T) + 3) / 4); i++) \
      words[i] = INTRINSIC(0xffffffffu, words[i], where); \
    memcpy(&value, words, sizeof(T)); \
    return value; \
  }
TGC_SHUFFLE(tgc_shuffle, __shfl_sync)
TGC_SHUFFLE(tgc_shuffle_xor, __shfl_xor_sync)
TGC_SHUFFLE(tgc_shuffle_up, __shfl_up_sync)
TGC_SHUFFLE(tgc_shuffle_down, __shfl_down_sync)
#undef TGC_SHUFFLE

// A combine whose result is the same bits either way round says `symmetric = true`.
template <class C, class = void> struct tgc_is_symmetric { static constexpr bool value = false; };
template <class C> struct tgc_is_symmetric<C, tgc_void<decltype(C::symmetric)>> {
  static constexpr bool value = C::symmetric;
};

// The values of COUNT neighbouring lanes (a power of 2, of 32 at most) combined in lane order, as a
// balanced tree; every lane gets the result of its own neighbours.
template <int COUNT = 32, class T, class Combine>
TGC_DEVICE T tgc_warp_reduce(T value, Combine combine) {
#pragma unroll
  for (int step = 1; step < COUNT; step *= 2) {
    T other = tgc_shuffle_xor(value, step);
    if (tgc_is_symmetric<Combine>::value || !(tgc_lane() & step)) value = combine(value, other);
    else value = combine(other, value);
  }
  return value;
}

// The values of lanes STRIDE apart (a power of 2) combined in lane order, as a balanced tree; all of
// them get the result.
template <int STRIDE, class T, class Combine>
TGC_DEVICE T tgc_strided_reduce(T value, Combine combine) {
#pragma unroll
  for (int step = STRIDE; step < 32; step *= 2) {
    T other = tgc_shuffle_xor(value, step);
    if (tgc_is_symmetric<Combine>::value || !(tgc_lane() & step)) value = combine(value, other);
    else value = combine(other, value);
  }
  return value;
}

// The first `count` values of a warp (1 to 32), in lane order; every lane gets the result.
template <class T, class Combine>
TGC_DEVICE T tgc_warp_reduce_first(T value, Combine combine, int count) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    T other = tgc_shuffle_down(value, step);
    if (!(tgc_lane() & step) && tgc_lane() + step < count) value = combine(value, other);
  }
  return tgc_shuffle(value, 0);
}

// Scratch that a block reduction of T needs, in bytes.
template <class T> constexpr int tgc_block_reduce_bytes = 32 * int(sizeof(T));

// The values of all threads of the block combined in thread order, in a fixed tree; every thread
// gets the result. `smem` (aligned for T) is free to use on entry and stays in use: a block that
// reduces several times gives each its own, and waits once for each.
template <class T, class Combine>
TGC_DEVICE T tgc_block_reduce_once(T value, Combine combine, char* smem) {
  value = tgc_warp_reduce(value, combine);
  int warps = blockDim.x >> 5;
  if (warps == 1) return value;
  T* partial = reinterpret_cast<T*>(smem);
  if (tgc_lane() == 0) partial[tgc_warp()] = value;
  __syncthreads();
  value = partial[tgc_lane() < warps ? tgc_lane() : 0];
  return tgc_warp_reduce_first(value, combine, warps);
}

// The same in two halves, before and behind a __syncthreads(), for several values to wait at once;
// the block has WARPS warps, a power of 2.
template <class T, class Combine>
TGC_DEVICE void tgc_block_send(T value, Combine combine, char* smem) {
  value = tgc_warp_reduce(value, combine);
  if (tgc_lane() == 0) reinterpret_cast<T*>(smem)[tgc_warp()] = value;
}
template <int WARPS, class T, class Combine>
TGC_DEVICE void tgc_block_receive(T& value, Combine combine, char* smem) {
  value = tgc_warp_reduce<WARPS>(reinterpret_cast<T*>(smem)[tgc_lane() % WARPS], combine);
}

// The same for any block, and `smem` is free again on return.
template <class T, class Combine>
TGC_DEVICE T tgc_block_reduce(T value, Combine combine, char* smem) {
  value = tgc_block_reduce_once(value, combine, smem);
  __syncthreads();
  return value;
}

// Running values of columns in shared memory, N neighbours at once, which only one thread touches:
// pieces of 16 bytes, so that neighbouring threads meet different banks.
template <class T, int N>
constexpr int tgc_piece = N * int(sizeof(T)) <= 16 ? N : 16 / int(sizeof(T));

template <class T, int N>
TGC_DEVICE tgc_vector<T, tgc_piece<T, N>>* tgc_columns_at(T* columns, int item, int items, int k) {
  return reinterpret_cast<tgc_vector<T, tgc_piece<T, N>>*>(columns) + k * items + item;
}
template <int N, class T>
TGC_DEVICE void tgc_columns_start(T* columns, int item, int items, T value) {
#pragma unroll
  for (int k = 0; k < N / tgc_piece<T, N>; k++)
    for (T& one : tgc_columns_at<T, N>(columns, item, items, k)->at) one = value;
}
template <int N, class T, class Combine>
TGC_DEVICE void tgc_columns_take(T* columns, int item, int items, const T (&values)[N],
                                 Combine combine) {
  constexpr int piece = tgc_piece<T, N>;
#pragma unroll
  for (int k = 0; k < N / piece; k++) {
    auto* address = tgc_columns_at<T, N>(columns, item, items, k);
    auto own = *address;
#pragma unroll
    for (int i = 0; i < piece; i++) own.at[i] = combine(own.at[i], values[k * piece + i]);
    *address = own;
  }
}
template <int N, class T>
TGC_DEVICE void tgc_columns_keep(T* columns, int item, int items, T* target, int index) {
#pragma unroll
  for (int k = 0; k < N / tgc_piece<T, N>; k++)
    tgc_store_vector(target, index + k * tgc_piece<T, N>,
                     *tgc_columns_at<T, N>(columns, item, items, k));
}

// The same in registers, for one piece of a row.
template <int N, class T> TGC_DEVICE void tgc_columns_start(T (&columns)[N], T value) {
#pragma unroll
  for (int i = 0; i < N; i++) columns[i] = value;
}
template <int N, class T, class Combine>
TGC_DEVICE void tgc_columns_take(T (&columns)[N], const T (&values)[N], Combine combine) {
#pragma unroll
  for (int i = 0; i < N; i++) columns[i] = combine(columns[i], values[i]);
}
template <int N, class T>
TGC_DEVICE void tgc_columns_keep(const T (&columns)[N], T* target, int index) {
  constexpr int piece = tgc_piece<T, N>;
#pragma unroll
  for (int k = 0; k < N; k += piece) {
    tgc_vector<T, piece> part;
#pragma unroll
    for (int i = 0; i < piece; i++) part.at[i] = columns[k + i];
    tgc_store_vector(target, index + k, part);
  }
}

// Inclusive scan over the lanes of a warp.
template <class T, class Combine> TGC_DEVICE T tgc_warp_scan(T value, Combine combine) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    T other = tgc_shuffle_up(value, step);
    if (tgc_lane() >= step) value = combine(other, value);
  }
  return value;
}

// Inclusive scan over the threads of the block; smem as for tgc_block_reduce.
template <class T, class Combine>
TGC_DEVICE T tgc_block_scan(T value, Combine combine, char* smem) {
  value = tgc_warp_scan(value, combine);
  int warps = blockDim.x >> 5;
  if (warps == 1) return value;
  T* partial = reinterpret_cast<T*>(smem);
  if (tgc_lane() == 31) partial[tgc_warp()] = value;
  __syncthreads();
  T before = tgc_warp_scan(partial[tgc_lane() < warps ? tgc_lane() : 0], combine);
  before = tgc_shuffle(before, tgc_warp() > 0 ? tgc_warp() - 1 : 0);
  __syncthreads();
  return tgc_warp() > 0 ? combine(before, value) : value;
}

// ------------------------------------------------------------------------------- what is combined

struct tgc_sum_op {
  static constexpr bool symmetric = true;
  template <class T> __device__ __forceinline__ T operator()(T a, T b) const { return T(a + b); }
};
struct tgc_product_op {
  static constexpr bool symmetric = true;
  template <class T> __device__ __forceinline__ T operator()(T a, T b) const {
    return tgc_product(a, b);
  }
};
struct tgc_max_op {
  static constexpr bool symmetric = true;
  template <class T> __device__ __forceinline__ T operator()(T a, T b) const {
    return tgc_max(a, b);
  }
};
struct tgc_min_op {
  static constexpr bool symmetric = true;
  template <class T> __device__ __forceinline__ T operator()(T a, T b) const {
    return tgc_min(a, b);
  }
};
struct tgc_and_op {
  static constexpr bool symmetric = true;
  template <class T> __device__ __forceinline__ T operator()(T a, T b) const { return T(a & b); }
};
struct tgc_or_op {
  static constexpr bool symmetric = true;
  template <class T> __device__ __forceinline__ T operator()(T a, T b) const { return T(a | b); }
};

// A value and where it stands. Of equal values the lowest index wins, and NaN beats every number.
template <class T> struct tgc_pair { T value; long long index; };
struct tgc_argmax_op {
  static constexpr bool symmetric = true;
  template <class T>
  __device__ __forceinline__ tgc_pair<T> operator()(tgc_pair<T> a, tgc_pair<T> b) const {
    bool tie = a.value == b.value || (tgc_isnan(a.value) && tgc_isnan(b.value));
    if (tie) return a.index <= b.index ? a : b;
    return a.value > b.value || tgc_isnan(a.value) ? a : b;
  }
};
struct tgc_argmin_op {
  static constexpr bool symmetric = true;
  template <class T>
  __device__ __forceinline__ tgc_pair<T> operator()(tgc_pair<T> a, tgc_pair<T> b) const {
    bool tie = a.value == b.value || (tgc_isnan(a.value) && tgc_isnan(b.value));
    if (tie) return a.index <= b.index ? a : b;
    return a.value < b.value || tgc_isnan(a.value) ? a : b;
  }
};

// Welford's triple: how many values, their mean, the sum of squared differences from the mean.
template <class T> struct tgc_welford {
  T n, mean, m2;
};
// The mean moves by a share of a difference: an error in the share's last place does not add up.
// An infinite mean stays: the difference of another value from it is infinite the other way.
template <class T> TGC_DEVICE T tgc_welford_mean(T mean, T value, T moved) {
  return tgc_isnan(moved) ? mean + value : moved;
}
template <class T> TGC_DEVICE tgc_welford<T> tgc_welford_add(tgc_welford<T> a, T value) {
  T n = a.n + T(1), delta = value - a.mean;
  T mean = tgc_welford_mean(a.mean, value, tgc_fma(delta, tgc_share_of(n), a.mean));
  return {n, mean, tgc_fma(delta, value - mean, a.m2)};
}
// N values at once: their own mean and deviations, and one merge.
template <int N, class T>
TGC_DEVICE tgc_welford<T> tgc_welford_add(tgc_welford<T> a, const T (&values)[N]) {
  T total = 0, m2 = 0;
#pragma unroll
  for (int i = 0; i < N; i++) total += values[i];
  T mean = total * (T(1) / N), n = a.n + T(N);
#pragma unroll
  for (int i = 0; i < N; i++) m2 = tgc_fma(values[i] - mean, values[i] - mean, m2);
  T delta = mean - a.mean, share = T(N) * tgc_share_of(n);
  mean = tgc_welford_mean(a.mean, mean, tgc_fma(delta, share, a.mean));
  return {n, mean, tgc_fma(delta * delta * a.n, share, a.m2 + m2)};
}
struct tgc_welford_op {
  template <class T>
  __device__ __forceinline__ tgc_welford<T> operator()(tgc_welford<T> a, tgc_welford<T> b) const {
    T n = a.n + b.n;
    T delta = b.mean - a.mean, share = b.n * tgc_share_of(n > T(1) ? n : T(1));  // no branch
    T mean = tgc_welford_mean(a.mean, b.mean, tgc_fma(delta, share, a.mean));
    return {n, mean, tgc_fma(delta * delta * a.n, share, a.m2 + b.m2)};
  }
};

// -------------------------------------------------------------------------------------- launching

// Programmatic dependent launch, from sm_90: wait until the kernels before this one are done, and
// let the kernels after this one begin. Below sm_90 a kernel begins when its predecessors ended.
TGC_DEVICE void tgc_grid_wait() {
#if !defined(TGC_EMULATOR) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
TGC_DEVICE void tgc_grid_signal() {
#if !defined(TGC_EMULATOR) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// A stage: its parameters, FIELDS of a structure, and the head of its function, whose body follows.
#define TGC_STAGE(NAME, ...) \
  struct NAME##_params { __VA_ARGS__ }; \
  __device__ __forceinline__ void NAME##_stage(int virtual_block, const NAME##_params& p, char* smem)

// The kernel NAME of blocks of T threads, around NAME_stage and NAME_params.
// TGC_KERNEL_MIN_BLOCKS is what generated kernels use: BLOCKS, the second argument of
// __launch_bounds__, leaves registers for so many blocks on a multiprocessor. It waits for the
// kernels before it with all its threads before it lets those after it begin, so that whatever lies
// behind a kernel's direct predecessors is complete when it starts.
#ifdef TGC_EMULATOR
#define TGC_KERNEL_MIN_BLOCKS(NAME, T, BLOCKS) TGC_KERNEL(NAME, T)
#else
#define TGC_KERNEL_AROUND(NAME, T, BLOCKS, START) \
  static_assert(sizeof(NAME##_params) <= 4096, "kernel parameters take at most 4096 bytes"); \
  extern "C" __global__ void __launch_bounds__(T, BLOCKS) \
  NAME(const __grid_constant__ NAME##_params p) { \
    extern __shared__ __align__(1024) char smem[]; \
    START \
    NAME##_stage(blockIdx.x, p, smem); \
  }
#define TGC_KERNEL_MIN_BLOCKS(NAME, T, BLOCKS) \
  TGC_KERNEL_AROUND(NAME, T, BLOCKS, tgc_grid_wait(); tgc_grid_signal();)
#define TGC_KERNEL(NAME, T) TGC_KERNEL_AROUND(NAME, T, 1, )
#endif
