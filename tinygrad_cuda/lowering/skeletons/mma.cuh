// Matrix units: tiles from shared memory to registers (ldmatrix), their products (mma), rounding to
// the formats they read, and 16-byte asynchronous copies with zero fill. Kernels that name none of
// these functions are compiled without this text.
//
// sm_75 has two products of 16 x 8 x 8 for one of fp16, makes copies where they are issued, and has
// neither mma of bfloat16 and tf32 nor the conversions to them.
//
// The emulator computes a warp's operation once all its 32 lanes have come. A lane below is 0 to 31,
// `group` = lane / 4 and `pair` = lane % 4, as the PTX ISA draws the fragments:
//   a, 16 x 16 of 16 bits   r0 (group, 2 pair + {0, 1})  r1 row + 8  r2 column + 8  r3 both
//   b, 16 x 8 of 16 bits    r0 (2 pair + {0, 1}, group)  r1 row + 8
//   a, 16 x 8 of tf32       r0 (group, pair)  r1 row + 8  r2 column + 4  r3 both
//   b, 8 x 8 of tf32        r0 (pair, group)  r1 row + 4
//   d, 16 x 8 of float32    0, 1 (group, 2 pair + {0, 1})  2, 3 row + 8
// The lower half of a register is the element of the lower row of b, or the lower column of a.

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 750
#error "mma.cuh needs sm_75"
#endif
#if defined(TGC_EMULATOR) || __CUDA_ARCH__ >= 800
#define TGC_MMA_OF_SM_80
#endif

#ifdef TGC_EMULATOR

// What a lane brings to an operation of its warp: addresses of its own registers.
struct tgc_mma_lane {
  const void* row;     // of ldmatrix
  unsigned* r;         // that ldmatrix writes
  float* d;            // that mma adds to
  const unsigned *a, *b;
};

static __forceinline__ tgc_mma_lane& tgc_mma_at(void* const* lanes, int lane) {
  return *(tgc_mma_lane*)lanes[lane];
}

template <bool TRANSPOSED> TGC_HOT void tgc_ldmatrix_twin(void* const* lanes) {
  for (int matrix = 0; matrix < 4; matrix++) {
    unsigned short at[8][8];
    for (int row = 0; row < 8; row++) memcpy(at[row], tgc_mma_at(lanes, matrix * 8 + row).row, 16);
    for (int lane = 0; lane < 32; lane++) {
      int group = lane / 4, first = lane % 4 * 2;
      unsigned low = TRANSPOSED ? at[first][group] : at[group][first];
      unsigned high = TRANSPOSED ? at[first + 1][group] : at[group][first + 1];
      tgc_mma_at(lanes, lane).r[matrix] = low | high << 16;
    }
  }
}

// Products of 16-bit and of tf32 numbers are exact in float32. Here they are summed in the order of
// k, each sum rounded to the nearest float32, and the sum is added to d last. The hardware aligns
// the products of 4 to 16 k and d to the largest of them and truncates what lies below: its sum is
// off by more, toward zero, and the order does not matter within such a piece.
template <int K, class Value> TGC_HOT void tgc_mma_twin(void* const* lanes, Value value) {
  constexpr int packed = K == 16 ? 2 : 1, half = K / 2;  // packed: elements of a register
  float a[16][16], b[K][8];
  for (int lane = 0; lane < 32; lane++) {
    int group = lane / 4, pair = lane % 4;
    for (int i = 0; i < packed; i++) {
      int k = pair * packed + i;
      for (int r = 0; r < 4; r++)
        a[group + r % 2 * 8][k + r / 2 * half] = value(tgc_mma_at(lanes, lane).a[r], i);
      for (int r = 0; r < 2; r++) b[k + r * half][group] = value(tgc_mma_at(lanes, lane).b[r], i);
    }
  }
  tgc_emu_columns sums[16];
  tgc_emu_tile_product<K>(a, b[0], 8, sums);
  for (int lane = 0; lane < 32; lane++) {
    float* d = tgc_mma_at(lanes, lane).d;
    for (int i = 0; i < 4; i++) d[i] += sums[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
  }
}
static void tgc_mma_bf16_twin(void* const* lanes) {
  tgc_mma_twin<16>(lanes, [](unsigned bits, int i) {
    return __uint_as_float(i ? bits & 0xffff0000u : bits << 16);
  });
}
static void tgc_mma_fp16_twin(void* const* lanes) {
  tgc_mma_twin<16>(lanes, [](unsigned bits, int i) {
    return tgc_half_value((unsigned short)(i ? bits >> 16 : bits));
  });
}
// The matrix unit does not read the lower 13 bits of a tf32 operand.
static void tgc_mma_tf32_twin(void* const* lanes) {
  tgc_mma_twin<8>(lanes, [](unsigned bits, int) { return __uint_as_float(bits & 0xffffe000u); });
}

#endif

// ------------------------------------------------------------------------- shared memory to tiles
// Four matrices of 8 x 8 elements of 16 bits: `row` is the lane's own address, of row lane % 8 of
// matrix lane / 8, in shared memory and divisible by 16. r[m] is the lane's part of matrix m, or of
// its transpose.

TGC_DEVICE void tgc_ldmatrix_x4(unsigned (&r)[4], const void* row) {
#ifdef TGC_EMULATOR
  tgc_emu_check_shared(row, 16, 16, false);
  tgc_mma_lane own = {row, r, nullptr, nullptr, nullptr};
  tgc_emu_warp_collective(tgc_ldmatrix_twin<false>, &own);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"((unsigned)__cvta_generic_to_shared(row)) : "memory");
#endif
}
TGC_DEVICE void tgc_ldmatrix_x4_trans(unsigned (&r)[4], const void* row) {
#ifdef TGC_EMULATOR
  tgc_emu_check_shared(row, 16, 16, false);
  tgc_mma_lane own = {row, r, nullptr, nullptr, nullptr};
  tgc_emu_warp_collective(tgc_ldmatrix_twin<true>, &own);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"((unsigned)__cvta_generic_to_shared(row)) : "memory");
#endif
}

// The same of numbers of 32 bits, which ldmatrix does not transpose, one by one: r[q] lies q % 2 * NEAR
// + q / 2 * FAR bytes behind the lane's address.
template <int NEAR, int FAR> TGC_DEVICE void tgc_load_x4(unsigned (&r)[4], const void* from) {
#pragma unroll
  for (int q = 0; q < 4; q++)
    r[q] = *reinterpret_cast<const unsigned*>((const char*)from + q % 2 * NEAR + q / 2 * FAR);
}

// Two neighbours. Loads stay behind the products that precede them in the text: the compiler gathers
// others ahead of those, in more registers than a kernel of two results has left.
TGC_DEVICE tgc_vector<float, 2> tgc_load_pair(const void* from) {
#ifdef TGC_EMULATOR
  return *reinterpret_cast<const tgc_vector<float, 2>*>(from);
#else
  tgc_vector<float, 2> pair;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
               : "=f"(pair.at[0]), "=f"(pair.at[1])
               : "r"((unsigned)__cvta_generic_to_shared(from)) : "memory");
  return pair;
#endif
}

// --------------------------------------------------------------------------------------- products
// d += a b, on fragments as drawn above.

#ifdef TGC_EMULATOR
#define TGC_MMA(NAME, SHAPE) \
  TGC_DEVICE void NAME(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) { \
    tgc_mma_lane own = {nullptr, nullptr, d, a, b}; \
    tgc_emu_warp_collective(NAME##_twin, &own); \
  }
#else
#define TGC_MMA(NAME, SHAPE) \
  TGC_DEVICE void NAME(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) { \
    asm volatile("mma.sync.aligned." SHAPE " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, " \
                 "{%0, %1, %2, %3};" \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])); \
  }
#endif
#ifdef TGC_MMA_OF_SM_80
TGC_MMA(tgc_mma_bf16, "m16n8k16.row.col.f32.bf16.bf16.f32")
TGC_MMA(tgc_mma_fp16, "m16n8k16.row.col.f32.f16.f16.f32")
TGC_MMA(tgc_mma_tf32, "m16n8k8.row.col.f32.tf32.tf32.f32")
#else
// The first 8 of k are in r0 and r1 of a and r0 of b.
TGC_DEVICE void tgc_mma_fp16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#pragma unroll
  for (int half = 0; half < 2; half++)
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[half * 2]), "r"(a[half * 2 + 1]), "r"(b[half]));
}
#endif

// --------------------------------------------------------------------------------------- rounding

#ifdef TGC_MMA_OF_SM_80
// The nearest number of 10 mantissa bits, ties away from zero; as a float32 its lower 13 bits are 0.
TGC_DEVICE unsigned tgc_tf32(float value) {
#ifdef TGC_EMULATOR
  unsigned bits = __float_as_uint(value);
  if ((bits & 0x7f800000u) != 0x7f800000u) return (bits + 0x1000u) & 0xffffe000u;
  return bits & 0x7fffffu ? 0x7fffffffu : bits;
#else
  unsigned bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
  return bits;
#endif
}
// A float32 as the sum of two numbers: `high` has 10 mantissa bits, to nearest, ties away from zero,
// and `low` what is left, exactly; the unit reads its first 10. No `high` is infinite: the largest
// numbers are rounded toward zero, and an infinity is the largest `high` and an infinite `low`. Of
// no number `low` is none. Four instructions, one of which saturates (min.xorsign.abs: the smaller
// magnitude, with the product's sign); sm_80 does not have it and takes two.
TGC_DEVICE void tgc_tf32_split(unsigned value, unsigned& high, unsigned& low) {
  const unsigned most = 0x7f7fefffu;  // rounds to the largest finite number of 10 mantissa bits
#if defined(TGC_EMULATOR)
  const unsigned bounded = (value & 0x7fffffffu) > most ? (value & 0x80000000u) | most : value;
#elif __CUDA_ARCH__ >= 860
  float smaller;
  asm("min.xorsign.abs.f32 %0, %1, %2;"
      : "=f"(smaller) : "f"(__uint_as_float(value)), "f"(__uint_as_float(most)));
  const unsigned bounded = __float_as_uint(smaller);
#else
  const float limit = __uint_as_float(most);
  const unsigned bounded = __float_as_uint(fminf(fmaxf(__uint_as_float(value), -limit), limit));
#endif
  high = (bounded + 0x1000u) & 0xffffe000u;
  low = __float_as_uint(__uint_as_float(value) - __uint_as_float(high));
}
// The same by three instructions, for kernels that sum again what is not finite: of an infinity, and
// of what `high` rounds to one, the sum is no number.
TGC_DEVICE void tgc_tf32_split_unsaturated(unsigned value, unsigned& high, unsigned& low) {
  high = (value + 0x1000u) & 0xffffe000u;
  low = __float_as_uint(__uint_as_float(value) - __uint_as_float(high));
}
// Two floats to the halves of a register, to nearest, ties to even.
TGC_DEVICE unsigned tgc_pack_bf16(float low, float high) {
#ifdef TGC_EMULATOR
  return tgc_bfloat16_bits(low) | (unsigned)tgc_bfloat16_bits(high) << 16;
#else
  unsigned bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
#endif
}
#endif
TGC_DEVICE unsigned tgc_pack_fp16(float low, float high) {
#ifdef TGC_EMULATOR
  return tgc_half_bits(low) | (unsigned)tgc_half_bits(high) << 16;
#elif __CUDA_ARCH__ >= 800
  unsigned bits;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
#else
  unsigned short halves[2];
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(halves[0]) : "f"(low));
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(halves[1]) : "f"(high));
  return halves[0] | (unsigned)halves[1] << 16;
#endif
}

// ----------------------------------------------------------------------------------------- powers

// 2^x within a few parts in a million; what is below 2^-126 is 0.
TGC_DEVICE float tgc_exp2_short(float x) {
#ifdef TGC_EMULATOR
  return exp2f(x);
#else
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#endif
}

// Whether the sign is set, as that of a power whose weight is dropped; zero then, or the power.
TGC_DEVICE bool tgc_is_marked(float x) { return __float_as_uint(x) >> 31; }
TGC_DEVICE float tgc_unmarked(float x) { return tgc_is_marked(x) ? 0.0f : x; }

// --------------------------------------------------------------------------- asynchronous copies

// 16 bytes to shared memory; zeros where not `inside`, when `global` is not read. Groups are closed
// by tgc_copy_commit and waited for by tgc_copy_wait, of device.cuh.
TGC_DEVICE void tgc_copy_async16(void* shared, const void* global, bool inside) {
#ifdef TGC_EMULATOR
  if (inside) tgc_emu_check(global, 0, 1, 16, false);
  tgc_emu_copy_async(shared, inside ? global : nullptr, 16);
#elif __CUDA_ARCH__ < 800
  *reinterpret_cast<uint4*>(shared) = inside ? *reinterpret_cast<const uint4*>(global) : uint4();
#else
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :: "r"((unsigned)__cvta_generic_to_shared(shared)), "l"(global),
                  "r"(inside ? 16 : 0) : "memory");
#endif
}
