// What every generated kernel looks like from outside: parameters, and a device function that a
// launch of its own, a packed launch or a graph node can call.
//@ stage
@comment@
struct @name@_params {
  @params@
};
__device__ __forceinline__ void @name@_stage(int virtual_block, const @name@_params& p,
                                             char* smem) {
  @body@
}
//@ kernel
TGC_KERNEL_DENSE(@name@, @threads@, @dense@)
//@ pack
// @comment@
struct @name@_params {
  @params@
};
__device__ __forceinline__ void @name@_stage(int virtual_block, const @name@_params& p,
                                             char* smem) {
  @choices@
}
