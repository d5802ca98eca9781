// Products of a warpgroup, of tiles in shared memory (wgmma). It runs on sm_90a alone, after tma.cuh.
// Kernels that name none of these functions are compiled without this text.
//
// d (64, N) += a (64, K) b (K, N), K = 16 of 16 bits or 8 of tf32. Warp w of the four has rows 16 w to
// 16 w + 15, and a lane's d[4 j + 2 h + i] is row 16 w + 8 h + lane / 4, column 8 j + lane % 4 * 2 + i.
//
// A tile in shared memory is described by its address, its swizzle of W = 1 (none), 2, 4 or 8 pieces
// of 16 bytes, and two strides in bytes. It begins at a multiple of 128 W bytes.
//   K-major: the elements of a row of a, or of a column of b, lie side by side. 8 rows of 16 W bytes
//     follow each other, and `stride` leads to the next 8. Without a swizzle `leading` leads to the
//     next piece along k; with one, the next K begin 32 bytes further in the same rows.
//   MN-major (16 bits): the elements of a column of a, or of a row of b, lie side by side, 8 W of them.
//     8 such lines of successive k follow each other, and `stride` leads to the next 8 k, `leading` to
//     the next 8 W rows or columns. Without a swizzle the two change places.
// The swizzles are those of TMA: a box whose rows are 16 W bytes is a tile.

#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "wgmma.cuh needs sm_90a: no other architecture has wgmma"
#endif

TGC_DEVICE unsigned long long tgc_wgmma_descriptor(const void* shared, int leading, int stride,
                                                   int swizzle) {
#ifdef TGC_EMULATOR
  tgc_emu_check_shared(shared, 16, 16, false);
  unsigned address = unsigned((const char*)shared - tgc_emu_smem);
#else
  unsigned address = tgc_shared_address(shared);
#endif
  // The code of a swizzle: 0, 3, 2, 1 for W = 1, 2, 4, 8.
  unsigned long long code = swizzle == 1 ? 0 : swizzle == 2 ? 3 : swizzle == 4 ? 2 : 1;
  return (unsigned long long)((address & 0x3ffff) >> 4) | (unsigned long long)(leading >> 4) << 16 |
         (unsigned long long)(stride >> 4) << 32 | code << 62;
}

// Before the first product, and before one that follows other use of its registers.
TGC_DEVICE void tgc_wgmma_fence() {
#ifdef TGC_EMULATOR
  tgc_emu_warp_collective(tgc_emu_wgmma_fence, nullptr);
#else
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
TGC_DEVICE void tgc_wgmma_commit() {
#ifdef TGC_EMULATOR
  tgc_emu_warp_collective(tgc_emu_wgmma_commit, nullptr);
#else
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
// Until all groups but the NEWER newest are complete: their d may be read, and their tiles written.
template <int NEWER> TGC_DEVICE void tgc_wgmma_wait() {
#ifdef TGC_EMULATOR
  int newer = NEWER;
  tgc_emu_warp_collective(tgc_emu_wgmma_wait, &newer);
#else
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(NEWER) : "memory");
#endif
}
// After a wait: no use of a completed d is moved before it.
template <int R> TGC_DEVICE void tgc_wgmma_complete(float (&d)[R]) {
#ifndef TGC_EMULATOR
#pragma unroll
  for (int i = 0; i < R; i++) asm volatile("" : "+f"(d[i]) :: "memory");
#endif
}

// A warpgroup takes registers from those that others have given: COUNT of each thread, from 24 to 256.
template <int COUNT> TGC_DEVICE void tgc_registers_take() {
  static_assert(COUNT >= 24 && COUNT <= 256 && COUNT % 8 == 0, "registers come in eights");
#ifndef TGC_EMULATOR
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(COUNT));
#endif
}
template <int COUNT> TGC_DEVICE void tgc_registers_give() {
  static_assert(COUNT >= 24 && COUNT <= 256 && COUNT % 8 == 0, "registers come in eights");
#ifndef TGC_EMULATOR
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(COUNT));
#endif
}

// More than 16 bytes of neighbours, by two loads.
template <class T, int N> struct tgc_two_vectors { tgc_vector<T, N / 2> low, high; };
template <int N, class T, class I>
TGC_DEVICE tgc_two_vectors<T, N> tgc_load_two_vectors(const T* base, I index) {
  return {tgc_load_vector<N / 2>(base, index), tgc_load_vector<N / 2>(base, index + N / 2)};
}
template <class T, int N>
TGC_DEVICE tgc_compute_t<T> tgc_element(const tgc_two_vectors<T, N>& two, int i) {
  return i < N / 2 ? tgc_element(two.low, i) : tgc_element(two.high, i - N / 2);
}

// --------------------------------------------------------------------------------------- products
// d = a b, or d += a b where `accumulate`. _rs: the lane's part of a is in registers, as that of a
// tgc_mma of its warp's 16 rows; these must not change before the wait either.

#ifdef TGC_EMULATOR

#define TGC_WGMMA(NAME, FORMAT) \
  template <int N, bool A_MN_MAJOR = false, bool B_MN_MAJOR = false> \
  TGC_DEVICE void NAME(float (&d)[N / 2], unsigned long long a, unsigned long long b, \
                       bool accumulate) { \
    static_assert(N >= 8 && N <= 256 && N % 8 == 0, "wgmma has 8 to 256 columns, by eights"); \
    static_assert(FORMAT != TGC_EMU_TF32 || !(A_MN_MAJOR || B_MN_MAJOR), "tf32 is K-major"); \
    tgc_emu_wgmma_lane own = {d, nullptr, a, b, N, FORMAT, A_MN_MAJOR, B_MN_MAJOR, accumulate}; \
    tgc_emu_warp_collective(tgc_emu_wgmma, &own); \
  } \
  template <int N, bool B_MN_MAJOR = false> \
  TGC_DEVICE void NAME##_rs(float (&d)[N / 2], const unsigned (&a)[4], unsigned long long b, \
                            bool accumulate) { \
    static_assert(N >= 8 && N <= 256 && N % 8 == 0, "wgmma has 8 to 256 columns, by eights"); \
    static_assert(FORMAT != TGC_EMU_TF32 || !B_MN_MAJOR, "tf32 is K-major"); \
    tgc_emu_wgmma_lane own = {d, a, 0, b, N, FORMAT, false, B_MN_MAJOR, accumulate}; \
    tgc_emu_warp_collective(tgc_emu_wgmma, &own); \
  }
TGC_WGMMA(tgc_wgmma_bf16, TGC_EMU_BF16)
TGC_WGMMA(tgc_wgmma_fp16, TGC_EMU_FP16)
TGC_WGMMA(tgc_wgmma_tf32, TGC_EMU_TF32)

#else

// The registers of d: their names in assembly, and as operands.
#define TGC_NAMES_4 "%0, %1, %2, %3"
#define TGC_NAMES_8 TGC_NAMES_4 ", %4, %5, %6, %7"
#define TGC_NAMES_16 TGC_NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define TGC_NAMES_32 TGC_NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, " \
  "%28, %29, %30, %31"
#define TGC_NAMES_48 TGC_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, " \
  "%44, %45, %46, %47"
#define TGC_NAMES_64 TGC_NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, " \
  "%60, %61, %62, %63"
#define TGC_NAMES_80 TGC_NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, " \
  "%76, %77, %78, %79"
#define TGC_NAMES_96 TGC_NAMES_80 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, " \
  "%92, %93, %94, %95"
#define TGC_NAMES_112 TGC_NAMES_96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, " \
  "%106, %107, %108, %109, %110, %111"
#define TGC_NAMES_128 TGC_NAMES_112 ", %112, %113, %114, %115, %116, %117, %118, %119, %120, " \
  "%121, %122, %123, %124, %125, %126, %127"
#define TGC_ALL_4(I) "+f"(d[I]), "+f"(d[I + 1]), "+f"(d[I + 2]), "+f"(d[I + 3])
#define TGC_ALL_8(I) TGC_ALL_4(I), TGC_ALL_4(I + 4)
#define TGC_ALL_16(I) TGC_ALL_8(I), TGC_ALL_8(I + 8)
#define TGC_ALL_32(I) TGC_ALL_16(I), TGC_ALL_16(I + 16)
#define TGC_ALL_48(I) TGC_ALL_32(I), TGC_ALL_16(I + 32)
#define TGC_ALL_64(I) TGC_ALL_32(I), TGC_ALL_32(I + 32)
#define TGC_ALL_80(I) TGC_ALL_64(I), TGC_ALL_16(I + 64)
#define TGC_ALL_96(I) TGC_ALL_64(I), TGC_ALL_32(I + 64)
#define TGC_ALL_112(I) TGC_ALL_64(I), TGC_ALL_48(I + 64)
#define TGC_ALL_128(I) TGC_ALL_64(I), TGC_ALL_64(I + 64)

// DO for one N of columns and its R = N / 2 registers of d: the operands after those have the numbers
// R, R + 1, ...
#define TGC_WGMMA_COLUMNS(DO, FORM) \
  if constexpr (N == 8) DO(FORM, 8, 4, 4, 5, 6, 7, 8, 9, 10); \
  else if constexpr (N == 16) DO(FORM, 16, 8, 8, 9, 10, 11, 12, 13, 14); \
  else if constexpr (N == 32) DO(FORM, 32, 16, 16, 17, 18, 19, 20, 21, 22); \
  else if constexpr (N == 64) DO(FORM, 64, 32, 32, 33, 34, 35, 36, 37, 38); \
  else if constexpr (N == 96) DO(FORM, 96, 48, 48, 49, 50, 51, 52, 53, 54); \
  else if constexpr (N == 128) DO(FORM, 128, 64, 64, 65, 66, 67, 68, 69, 70); \
  else if constexpr (N == 160) DO(FORM, 160, 80, 80, 81, 82, 83, 84, 85, 86); \
  else if constexpr (N == 192) DO(FORM, 192, 96, 96, 97, 98, 99, 100, 101, 102); \
  else if constexpr (N == 224) DO(FORM, 224, 112, 112, 113, 114, 115, 116, 117, 118); \
  else if constexpr (N == 256) DO(FORM, 256, 128, 128, 129, 130, 131, 132, 133, 134); \
  else static_assert(N == 8, "wgmma.cuh has 8, 16, 32, 64, 96, 128, 160, 192, 224, 256 columns")

#define TGC_WGMMA_TEXT(FORM, N, R, A, REST) \
  "wgmma.mma_async.sync.aligned.m64n" #N FORM " {" TGC_NAMES_##R "}, " A REST ";\n}"
#define TGC_WGMMA_IF(P) "{\n.reg .pred p;\nsetp.ne.b32 p, %" #P ", 0;\n"
#define TGC_WGMMA_SS(FORM, N, R, A, B, P, TA, TB, ...) \
  asm volatile(TGC_WGMMA_IF(P) \
               TGC_WGMMA_TEXT(FORM, N, R, "%" #A ", %" #B, ", p, 1, 1, %" #TA ", %" #TB) \
               : TGC_ALL_##R(0) \
               : "l"(a), "l"(b), "r"(int(accumulate)), "n"(int(A_MN_MAJOR)), "n"(int(B_MN_MAJOR)))
#define TGC_WGMMA_SS_TF32(FORM, N, R, A, B, P, ...) \
  asm volatile(TGC_WGMMA_IF(P) TGC_WGMMA_TEXT(FORM, N, R, "%" #A ", %" #B, ", p, 1, 1") \
               : TGC_ALL_##R(0) : "l"(a), "l"(b), "r"(int(accumulate)))
#define TGC_WGMMA_RS(FORM, N, R, A0, A1, A2, A3, B, P, TB) \
  asm volatile(TGC_WGMMA_IF(P) \
               TGC_WGMMA_TEXT(FORM, N, R, "{%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B, \
                              ", p, 1, 1, %" #TB) \
               : TGC_ALL_##R(0) \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(accumulate)), \
                 "n"(int(B_MN_MAJOR)))
#define TGC_WGMMA_RS_TF32(FORM, N, R, A0, A1, A2, A3, B, P, ...) \
  asm volatile(TGC_WGMMA_IF(P) \
               TGC_WGMMA_TEXT(FORM, N, R, "{%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B, \
                              ", p, 1, 1") \
               : TGC_ALL_##R(0) \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(accumulate)))

#define TGC_WGMMA(NAME, FORM, SS, RS) \
  template <int N, bool A_MN_MAJOR = false, bool B_MN_MAJOR = false> \
  TGC_DEVICE void NAME(float (&d)[N / 2], unsigned long long a, unsigned long long b, \
                       bool accumulate) { \
    TGC_WGMMA_COLUMNS(SS, FORM); \
  } \
  template <int N, bool B_MN_MAJOR = false> \
  TGC_DEVICE void NAME##_rs(float (&d)[N / 2], const unsigned (&a)[4], unsigned long long b, \
                            bool accumulate) { \
    TGC_WGMMA_COLUMNS(RS, FORM); \
  }
TGC_WGMMA(tgc_wgmma_bf16, "k16.f32.bf16.bf16", TGC_WGMMA_SS, TGC_WGMMA_RS)
TGC_WGMMA(tgc_wgmma_fp16, "k16.f32.f16.f16", TGC_WGMMA_SS, TGC_WGMMA_RS)
TGC_WGMMA(tgc_wgmma_tf32, "k8.f32.tf32.tf32", TGC_WGMMA_SS_TF32, TGC_WGMMA_RS_TF32)

#endif
