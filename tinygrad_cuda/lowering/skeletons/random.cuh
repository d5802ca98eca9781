// Random numbers as a function of (seed, node number, element index): Philox4x32-10. Included after
// device.cuh. The same numbers, bit for bit, come from graph/ops/philox.py, where the table of
// which element draws which words stands; change both or neither.
//
// Every function may be called by any thread for any element. The `x4` forms give elements index
// to index + 3 (index divisible by 4) from one Philox block: a quarter of the work.

struct tgc_random_words { unsigned at[4]; };

TGC_DEVICE tgc_random_words tgc_philox(tgc_random_words counter, unsigned key0, unsigned key1) {
  unsigned a = counter.at[0], b = counter.at[1], c = counter.at[2], d = counter.at[3];
#pragma unroll
  for (int round = 0; round < 10; round++) {
    unsigned long long first = a * 0xD2511F53ull, second = c * 0xCD9E8D57ull;
    a = unsigned(second >> 32) ^ b ^ key0;
    c = unsigned(first >> 32) ^ d ^ key1;
    b = unsigned(second);
    d = unsigned(first);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return {{a, b, c, d}};
}

TGC_DEVICE tgc_random_words tgc_random_block(unsigned long long seed,
                                             unsigned long long node_number, long long block) {
  return tgc_philox({{unsigned(block), unsigned(block >> 32), unsigned(node_number),
                      unsigned(node_number >> 32)}}, unsigned(seed), unsigned(seed >> 32));
}

// One of four words; selects instead of an array in local memory.
TGC_DEVICE unsigned tgc_random_word(const tgc_random_words& words, int which) {
  unsigned low = which & 1 ? words.at[1] : words.at[0];
  unsigned high = which & 1 ? words.at[3] : words.at[2];
  return which & 2 ? high : low;
}

// ------------------------------------------------------------------------------------------- bits

TGC_DEVICE unsigned tgc_random_bits(unsigned long long seed, unsigned long long node_number,
                                    long long index) {
  return tgc_random_word(tgc_random_block(seed, node_number, index >> 2), int(index & 3));
}

TGC_DEVICE unsigned long long tgc_random_bits64(unsigned long long seed,
                                                unsigned long long node_number, long long index) {
  tgc_random_words words = tgc_random_block(seed, node_number, index >> 1);
  unsigned high = index & 1 ? words.at[2] : words.at[0];
  unsigned low = index & 1 ? words.at[3] : words.at[1];
  return ((unsigned long long)high << 32) | low;
}

// low + floor(draw * (high - low) / 2**64), with low < high.
TGC_DEVICE long long tgc_random_integer(unsigned long long seed, unsigned long long node_number,
                                        long long index, long long low, long long high) {
  unsigned long long draw = tgc_random_bits64(seed, node_number, index);
  unsigned long long extent = (unsigned long long)high - (unsigned long long)low;
  unsigned long long draw_high = draw >> 32, draw_low = draw & 0xffffffffull;
  unsigned long long extent_high = extent >> 32, extent_low = extent & 0xffffffffull;
  unsigned long long carry = draw_high * extent_low + ((draw_low * extent_low) >> 32);
  unsigned long long middle = draw_low * extent_high + (carry & 0xffffffffull);
  unsigned long long offset = draw_high * extent_high + (carry >> 32) + (middle >> 32);
  return (long long)((unsigned long long)low + offset);
}

// ---------------------------------------------------------------------------------------- uniform
// In [0, 1), with as many random bits as the type's significand has.

TGC_DEVICE float tgc_random_uniform_f32(unsigned long long seed, unsigned long long node_number,
                                        long long index) {
  return float(tgc_random_bits(seed, node_number, index) >> 8) * (1.0f / 16777216.0f);
}

TGC_DEVICE double tgc_random_uniform_f64(unsigned long long seed, unsigned long long node_number,
                                         long long index) {
  return double(tgc_random_bits64(seed, node_number, index) >> 11) * (1.0 / 9007199254740992.0);
}

TGC_DEVICE tgc_vector<float, 4> tgc_random_uniform_f32x4(unsigned long long seed,
                                                         unsigned long long node_number,
                                                         long long index) {
  tgc_random_words words = tgc_random_block(seed, node_number, index >> 2);
  tgc_vector<float, 4> result;
#pragma unroll
  for (int i = 0; i < 4; i++) result.at[i] = float(words.at[i] >> 8) * (1.0f / 16777216.0f);
  return result;
}

// For the storage type T, in its compute type; the value is one that T holds exactly.
template <class T>
TGC_DEVICE tgc_compute_t<T> tgc_random_uniform(unsigned long long seed,
                                               unsigned long long node_number, long long index) {
  if constexpr (tgc_same<T, double>::value) {
    return tgc_random_uniform_f64(seed, node_number, index);
  } else if constexpr (tgc_same<T, float>::value) {
    return tgc_random_uniform_f32(seed, node_number, index);
  } else {
    constexpr int bits = tgc_same<T, tgc_half>::value ? 11 : 8;
    return float(tgc_random_bits(seed, node_number, index) >> (32 - bits)) * (1.0f / (1 << bits));
  }
}

// ------------------------------------------------------- the same arithmetic on every device
// Only + - * / and sqrt, each rounded by itself, in the order of philox.py.

#ifdef TGC_EMULATOR
TGC_DEVICE float tgc_div_rn(float a, float b) { return a / b; }
TGC_DEVICE double tgc_div_rn(double a, double b) { return a / b; }
TGC_DEVICE float tgc_sqrt_rn(float a) { return tgc_sqrt(a); }
TGC_DEVICE double tgc_sqrt_rn(double a) { return tgc_sqrt(a); }
#else
TGC_DEVICE float tgc_div_rn(float a, float b) { return __fdiv_rn(a, b); }
TGC_DEVICE double tgc_div_rn(double a, double b) { return __ddiv_rn(a, b); }
TGC_DEVICE float tgc_sqrt_rn(float a) { return __fsqrt_rn(a); }
TGC_DEVICE double tgc_sqrt_rn(double a) { return __dsqrt_rn(a); }
#endif

template <class F> struct tgc_random_format;
template <> struct tgc_random_format<float> {
  typedef unsigned word;
  typedef int signed_word;
  static constexpr int width = 23, log_terms = 4, turn_terms = 4;
  static constexpr word root_half = 0x3f3504f3u, one = 0x3f800000u;
  static constexpr float ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
  static constexpr float turn = float(6.283185307179586 / 4294967296.0);
};
template <> struct tgc_random_format<double> {
  typedef unsigned long long word;
  typedef long long signed_word;
  static constexpr int width = 52, log_terms = 10, turn_terms = 8;
  static constexpr word root_half = 0x3fe6a09e667f3bcdull, one = 0x3ff0000000000000ull;
  static constexpr double ln2_high = 6.93147180369123816490e-01;
  static constexpr double ln2_low = 1.90821492927058770002e-10;
  static constexpr double turn = 6.283185307179586 / 18446744073709551616.0;
};

// ln x of a positive normal x = 2**e (1 + f): ln(1 + f) = 2 artanh s with s = f / (2 + f).
template <class F> TGC_DEVICE F tgc_random_log(F x) {
  typedef tgc_random_format<F> format;
  typename format::word bits;
  memcpy(&bits, &x, sizeof(F));
  bits += format::one - format::root_half;
  F e = F(int(bits >> format::width) - int(format::one >> format::width));
  bits = (bits & ((typename format::word(1) << format::width) - 1)) + format::root_half;
  F f;
  memcpy(&f, &bits, sizeof(F));
  f = tgc_sub_rn(f, F(1));
  F s = tgc_div_rn(f, tgc_add_rn(f, F(2)));
  F z = tgc_mul_rn(s, s), series = F(0);
#pragma unroll
  for (int n = format::log_terms; n > 0; n--)
    series = tgc_mul_rn(z, tgc_add_rn(series, F(2.0 / (2 * n + 1))));
  F small = tgc_sub_rn(f, tgc_mul_rn(s, tgc_sub_rn(f, series)));
  return tgc_add_rn(tgc_mul_rn(e, format::ln2_high),
                    tgc_add_rn(small, tgc_mul_rn(e, format::ln2_low)));
}

// cos and sin of the angle 2 pi turn / 2**bits of the word. The quadrant is taken off in integers,
// exactly; then Taylor series on [-pi/4, pi/4].
template <class F> struct tgc_random_pair { F cosine, sine; };
template <class F>
TGC_DEVICE tgc_random_pair<F> tgc_random_turn(typename tgc_random_format<F>::word turn) {
  typedef tgc_random_format<F> format;
  typedef typename format::word word;
  constexpr int width = sizeof(word) * 8;
  word quadrant = (turn + (word(1) << (width - 3))) >> (width - 2);
  word rest = turn - (quadrant << (width - 2));
  F x = tgc_mul_rn(F(typename format::signed_word(rest)), format::turn);
  F z = tgc_mul_rn(x, x), sine = F(1), cosine = F(1);
#pragma unroll
  for (int n = format::turn_terms; n > 0; n--) {
    sine = tgc_sub_rn(F(1), tgc_mul_rn(tgc_mul_rn(z, sine), F(1.0 / (2 * n * (2 * n + 1)))));
    cosine = tgc_sub_rn(F(1), tgc_mul_rn(tgc_mul_rn(z, cosine), F(1.0 / ((2 * n - 1) * 2 * n))));
  }
  sine = tgc_mul_rn(x, sine);
  F first = quadrant & 1 ? sine : cosine, second = quadrant & 1 ? cosine : sine;
  return {quadrant == 1 || quadrant == 2 ? -first : first, quadrant >= 2 ? -second : second};
}

// ----------------------------------------------------------------------------------------- normal
// Box and Muller: radius sqrt(-2 ln u) in the direction of a random turn; u is never 0.

TGC_DEVICE tgc_random_pair<float> tgc_random_normal_pair(unsigned chance, unsigned turn) {
  float u = tgc_add_rn(float(chance) * (1.0f / 4294967296.0f), 1.0f / 8589934592.0f);
  float radius = tgc_sqrt_rn(tgc_mul_rn(-2.0f, tgc_random_log(u)));
  tgc_random_pair<float> direction = tgc_random_turn<float>(turn);
  return {tgc_mul_rn(direction.cosine, radius), tgc_mul_rn(direction.sine, radius)};
}

TGC_DEVICE float tgc_random_normal_f32(unsigned long long seed, unsigned long long node_number,
                                       long long index) {
  tgc_random_words words = tgc_random_block(seed, node_number, index >> 2);
  tgc_random_pair<float> pair = index & 2 ? tgc_random_normal_pair(words.at[2], words.at[3])
                                          : tgc_random_normal_pair(words.at[0], words.at[1]);
  return index & 1 ? pair.sine : pair.cosine;
}

TGC_DEVICE tgc_vector<float, 4> tgc_random_normal_f32x4(unsigned long long seed,
                                                        unsigned long long node_number,
                                                        long long index) {
  tgc_random_words words = tgc_random_block(seed, node_number, index >> 2);
  tgc_random_pair<float> first = tgc_random_normal_pair(words.at[0], words.at[1]);
  tgc_random_pair<float> second = tgc_random_normal_pair(words.at[2], words.at[3]);
  return {{first.cosine, first.sine, second.cosine, second.sine}};
}

TGC_DEVICE double tgc_random_normal_f64(unsigned long long seed, unsigned long long node_number,
                                        long long index) {
  tgc_random_words words = tgc_random_block(seed, node_number, index >> 1);
  unsigned long long chance = ((unsigned long long)words.at[0] << 32) | words.at[1];
  unsigned long long turn = ((unsigned long long)words.at[2] << 32) | words.at[3];
  double u = double((chance >> 11) + 1) * (1.0 / 9007199254740992.0);
  double radius = tgc_sqrt_rn(tgc_mul_rn(-2.0, tgc_random_log(u)));
  tgc_random_pair<double> direction = tgc_random_turn<double>(turn);
  return tgc_mul_rn(index & 1 ? direction.sine : direction.cosine, radius);
}

// For the storage type T, in its compute type; 16-bit types are float32 normals, rounded.
template <class T>
TGC_DEVICE tgc_compute_t<T> tgc_random_normal(unsigned long long seed,
                                              unsigned long long node_number, long long index) {
  if constexpr (tgc_same<T, double>::value) return tgc_random_normal_f64(seed, node_number, index);
  else return tgc_cast<T>(tgc_random_normal_f32(seed, node_number, index));
}
