// What every generated kernel looks like from outside: parameters, and a device function that a
// launch of its own, a packed launch or a graph node can call.
//@ stage
@comment@
TGC_STAGE(@name@,
  @params@
) {
  @body@
}
//@ kernel
TGC_KERNEL_DENSE(@name@, @threads@, @dense@)
//@ pack
// @comment@
TGC_STAGE(@name@,
  @params@
) {
  @choices@
}
