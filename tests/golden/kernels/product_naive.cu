// contract 1 x 1000 x 500 x 300, one output a thread, 300000000 FLOPs: matmul add maximum.
// Stores maximum (1000, 500) bfloat16.
// Grid 1954 x 256 threads, 1901000 bytes moved at least.
TGC_STAGE(contract_matmul_add_maximum_a571e9a88c,
  const tgc_bfloat16* in0;
  const tgc_bfloat16* in1;
  const tgc_bfloat16* in2;
  tgc_bfloat16* out0;
) {
  const int element = virtual_block * 256 + threadIdx.x;
  if (element < 500000) {
    const int strip = int(element % 500), n = strip;
    const int m = int(element / 500 % 1000);
    const int batch = int(element / 500 / 1000);
    float sum = 0.0f;
#pragma unroll 1
    for (int k = 0; k < 300; k++) {
      const float in0 = tgc_load(p.in0, m * 300 + k);
      const float in1 = tgc_load(p.in1, n * 300 + k);
      sum = tgc_fma(in0, in1, sum);
    }
    const float in2 = tgc_load(p.in2, strip);
    const float total = sum;
    const float rounded0 = tgc_cast<tgc_bfloat16>(total);
    const float add0 = tgc_cast<tgc_bfloat16>(rounded0 + in2);
    const float maximum0 = tgc_max(add0, 0.0f);
    tgc_store(p.out0, m * 500 + strip, maximum0);
  }
}
