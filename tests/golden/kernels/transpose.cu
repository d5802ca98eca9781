// transposing map over 368640 elements, 64 x 32 a block: contiguous.
// Stores contiguous (16, 12, 20, 96) bfloat16.
// Grid 192 x 256 threads, 1474752 bytes moved at least.
TGC_STAGE(map_contiguous_d32a1d9f8e,
  tgc_bfloat16* out0;
  const tgc_bfloat16* in0;
  const tgc_bfloat16* in1;
) {
  tgc_bfloat16* const tile0 = reinterpret_cast<tgc_bfloat16*>(smem);
  tgc_vector<tgc_bfloat16, 8> tile0_held;
  {
    const int item = threadIdx.x;
    const int plane = virtual_block / 12;
    const int vector = virtual_block / 3 % 4 * 8 + item % 8;
    const int along_out = virtual_block % 3 * 32 + item / 8;
    if (vector < 30) {
      const tgc_vector<tgc_bfloat16, 8> in0x8 = tgc_load_vector<8>(p.in0,
          plane * 23040 + along_out * 240 + vector * 8);
      const float in1 = tgc_load(p.in1, along_out);
      float crossing0[8];
#pragma unroll
      for (int v = 0; v < 8; v++) {
        const float in0 = tgc_element(in0x8, v);
        const float add0 = tgc_cast<tgc_bfloat16>(in0 + in1);
        const float maximum0 = tgc_max(add0, 0.0f);
        crossing0[v] = maximum0;
      }
      tile0_held = tgc_rounded<tgc_bfloat16>(crossing0);
    }
  }
  {
    const int item = threadIdx.x;
    const int start = item * 8;
    *reinterpret_cast<tgc_vector<tgc_bfloat16, 8>*>(tile0 + (start ^ start / 512 % 8 * 8)) = tile0_held;
  }
  __syncthreads();
  {
    const int item = threadIdx.x;
    const int plane = virtual_block / 12;
    const int along_in = virtual_block / 3 % 4 * 64 + item / 4;
    const int vector = virtual_block % 3 * 4 + item % 4;
    const int start = item % 4 * 512 + item / 4;
    const int column = item % 4;
    if (along_in < 240) {
      float out0x8[8];
#pragma unroll
      for (int v = 0; v < 8; v++) {
        const float crossed0 = tgc_to_compute(tile0[(start ^ column * 8) + v * 64]);
        const float contiguous0 = crossed0;
        out0x8[v] = contiguous0;
      }
      tgc_store_vector(p.out0, plane * 23040 + along_in * 96 + vector * 8, tgc_rounded<tgc_bfloat16>(out0x8));
    }
  }
}
