// host: the program around exported kernels: memory, the file of tensors, launches, results. With
// TGC_EMULATOR the same text is C++, and device_twin.h runs the kernels.
//@ host
// ------------------------------------------------------------------------------------------- host

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Memory of the device; it converts to whatever pointer a kernel's parameter is.
struct tgc_memory {
  char* address;
  template <class T> operator T*() const { return (T*)address; }
  tgc_memory operator+(long long bytes) const { return {address + bytes}; }
};

// A number that a kernel reads, by its 8 bytes.
struct tgc_number {
  unsigned long long bits;
  tgc_number(double value) { memcpy(&bits, &value, 8); }
  tgc_number(long long value) : bits(value) {}
};

static void tgc_fail(const char* what, const char* why) {
  fprintf(stderr, "%s: %s\n", what, why);
  exit(2);
}

#ifdef TGC_EMULATOR
static tgc_emu_range tgc_ranges[1 << 16];
static int tgc_range_count;
static char* tgc_machine;

static tgc_memory tgc_allocate(long long bytes) {
  char* const address = (char*)aligned_alloc(1024, (bytes + 1024) / 1024 * 1024);
  if (address == nullptr || tgc_range_count == 1 << 16) tgc_fail("memory", "there is too little");
  memset(address, 0, bytes);
  tgc_ranges[tgc_range_count++] = {(unsigned long long)address, (unsigned long long)bytes};
  return {address};
}
static void tgc_copy(tgc_memory to, const void* from, long long bytes) { memcpy(to, from, bytes); }
static void tgc_to_host(void* to, tgc_memory from, long long bytes) { memcpy(to, from, bytes); }
typedef long long tgc_kernel(tgc_emu_launch*);

template <class P>
static void tgc_launch(const char* name, tgc_kernel kernel, int blocks, int threads, int shared,
                       int together, const P& parameters) {
  if (tgc_machine == nullptr)
    tgc_machine = (char*)mmap(nullptr, TGC_EMU_MACHINE_BYTES, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  tgc_emu_launch launch = {};
  launch.machine = tgc_machine;
  launch.words = (const unsigned long long*)&parameters;
  launch.word_count = sizeof(P) / 8;
  launch.ranges = tgc_ranges;
  launch.range_count = tgc_range_count;
  launch.grid = blocks;
  launch.block = threads;
  launch.shared = shared;
  launch.cluster = together;
  if (kernel(&launch)) tgc_fail(name, "the kernel does what a GPU would not forgive");
}
#else
static void tgc_check(const char* what, cudaError_t status) {
  if (status != cudaSuccess) tgc_fail(what, cudaGetErrorString(status));
}
static tgc_memory tgc_allocate(long long bytes) {
  char* address;
  tgc_check("cudaMalloc", cudaMalloc(&address, bytes ? bytes : 1));
  tgc_check("cudaMemset", cudaMemset(address, 0, bytes));
  return {address};
}
static void tgc_copy(tgc_memory to, const void* from, long long bytes) {
  tgc_check("cudaMemcpy", cudaMemcpy(to, from, bytes, cudaMemcpyDefault));
}
static void tgc_to_host(void* to, tgc_memory from, long long bytes) {
  tgc_check("cudaMemcpy", cudaMemcpy(to, from, bytes, cudaMemcpyDefault));
}
template <class P>
static void tgc_launch(const char* name, void (*kernel)(P), int blocks, int threads, int shared,
                       int, const P& parameters) {
  const auto limit = cudaFuncAttributeMaxDynamicSharedMemorySize;
  tgc_check(name, cudaFuncSetAttribute((const void*)kernel, limit, shared));
  void* words[] = {(void*)&parameters};
  tgc_check(name, cudaLaunchKernel((const void*)kernel, blocks, threads, words, shared, 0));
}
#endif

// A tensor of the safetensors file, or, with steps, that of all steps.
static FILE* tgc_tensors;
static tgc_memory tgc_read(long long offset, long long bytes) {
  char* const data = (char*)malloc(bytes + 1);
  if (fseek(tgc_tensors, offset, SEEK_SET) || (long long)fread(data, 1, bytes, tgc_tensors) < bytes)
    tgc_fail("tensors", "the file is shorter than the program expects");
  const tgc_memory memory = tgc_allocate(bytes);
  tgc_copy(memory, data, bytes);
  free(data);
  return memory;
}

// The first elements of a result, and a hash (FNV-1a) of all its bytes.
enum tgc_kind { tgc_floating, tgc_signed, tgc_unsigned, tgc_brain };
static double tgc_element(const char* data, tgc_kind kind, int bytes) {
  unsigned long long bits = 0;
  memcpy(&bits, data, bytes);
  if (kind == tgc_unsigned) return (double)bits;
  if (kind == tgc_signed) return (double)((long long)(bits << (64 - 8 * bytes)) >> (64 - 8 * bytes));
  if (bytes == 8) return *(const double*)data;
  if (kind == tgc_floating && bytes == 2) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double size = exponent == 31 ? (fraction ? nan("") : HUGE_VAL)
                      : exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    return bits >> 15 ? -size : size;
  }
  const unsigned word = kind == tgc_brain ? (unsigned)bits << 16 : (unsigned)bits;
  float value;
  memcpy(&value, &word, 4);
  return value;
}
static unsigned long long tgc_show(int step, const char* name, tgc_memory memory, long long count,
                                   tgc_kind kind, int bytes) {
  char* const data = (char*)malloc(count * bytes + 1);
  tgc_to_host(data, memory, count * bytes);
  unsigned long long hash = 14695981039346656037ull;
  for (long long i = 0; i < count * bytes; i++)
    hash = (hash ^ (unsigned char)data[i]) * 1099511628211ull;
  printf("step %d  %s =", step, name);
  for (long long i = 0; i < count && i < 4; i++)
    printf(" %.9g", tgc_element(data + i * bytes, kind, bytes));
  printf("%s  %016llx\n", count > 4 ? " ..." : "", hash);
  free(data);
  return hash;
}

// What a kernel has written that refuses an index.
static void tgc_look(tgc_memory error) {
  long long words[4];
  tgc_to_host(words, error, sizeof words);
  if (!words[0]) return;
  fprintf(stderr, "index %lld is out of range: limit %lld, element %lld\n", words[1], words[2],
          words[3]);
  exit(2);
}
//@ maps
// What describes a tensor to TMA.
struct tgc_box { unsigned long long shape[5], strides[4]; unsigned box[5]; int axes, swizzle; };
struct tgc_corners { int lower[3], upper[3]; unsigned steps[5]; bool pixels; };

#ifdef TGC_EMULATOR
static tgc_tensor_map tgc_map(tgc_memory memory, int itemsize, int, const tgc_box& tensor,
                              const tgc_corners& corners) {
  tgc_tensor_map map = {};
  const int swizzle = tensor.swizzle == 0 ? 0 : tensor.swizzle == 32 ? 1 : tensor.swizzle == 64 ? 2 : 3;
  map.words[0] = (unsigned long long)memory.address;
  map.words[1] = itemsize | tensor.axes << 8 | swizzle << 16 | int(corners.pixels) << 24;
  for (int i = 0; i < tensor.axes; i++) map.words[2 + i] = tensor.shape[i];
  for (int i = 0; i < tensor.axes - 1; i++) map.words[7 + i] = tensor.strides[i];
  for (int i = 0; i < (corners.pixels ? 2 : tensor.axes); i++) map.words[11 + i] = tensor.box[i];
  if (corners.pixels)
    for (int i = 0; i < tensor.axes - 2; i++)
      map.words[13 + i] = (corners.lower[i] & 0xffff) | (corners.upper[i] & 0xffffll) << 16
                        | (unsigned long long)corners.steps[1 + i] << 32;
  return map;
}
#else
#include <cuda.h>
template <class F> static F tgc_driver(const char* name) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found;
  tgc_check(name, cudaGetDriverEntryPointByVersion(name, &entry, 12000, cudaEnableDefault, &found));
  if (entry == nullptr) tgc_fail(name, "the driver has no such function");
  return (F)entry;
}
static tgc_tensor_map tgc_map(tgc_memory memory, int, int dtype, const tgc_box& tensor,
                              const tgc_corners& corners) {
  typedef decltype(&cuTensorMapEncodeTiled) Tiled;
  typedef decltype(&cuTensorMapEncodeIm2col) Pixels;
  const cuuint32_t ones[5] = {1, 1, 1, 1, 1};
  const auto swizzle = tensor.swizzle == 0 ? CU_TENSOR_MAP_SWIZZLE_NONE
                     : tensor.swizzle == 32 ? CU_TENSOR_MAP_SWIZZLE_32B
                     : tensor.swizzle == 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B;
  const auto type = CUtensorMapDataType(dtype);
  const auto shape = (const cuuint64_t*)tensor.shape;
  const auto strides = (const cuuint64_t*)tensor.strides;
  alignas(64) CUtensorMap map;
  const CUresult status = corners.pixels
    ? tgc_driver<Pixels>("cuTensorMapEncodeIm2col")(
          &map, type, tensor.axes, memory.address, shape, strides, corners.lower, corners.upper,
          tensor.box[0], tensor.box[1], corners.steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
          CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
    : tgc_driver<Tiled>("cuTensorMapEncodeTiled")(
          &map, type, tensor.axes, memory.address, shape, strides, tensor.box, ones,
          CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
          CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) tgc_fail("tensor map", "the GPU takes no map of this form");
  tgc_tensor_map words;
  memcpy(&words, &map, sizeof words);
  return words;
}
#endif
//@ main
// @comment@
int main(int count, char** arguments) {
  const int steps = @steps@;
  tgc_tensors = fopen(count > 1 ? arguments[1] : "@tensors@", "rb");
  if (tgc_tensors == nullptr) tgc_fail("@tensors@", "cannot be opened; its path is the first argument");
  int same = 1;

  const tgc_memory error = tgc_allocate(64), arena = tgc_allocate(@arena@);
  @memory@
  @numbers@
  @expected@

  for (int step = 0; step < steps; step++) {
    @launches@
    tgc_look(error);
    @results@
    @exchange@
  }
  printf("%s\n", same ? "the same bits as when it was exported" : "other bits than when it was exported");
  return same ? 0 : 1;
}
