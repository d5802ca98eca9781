// stage: the outside of every generated kernel. TGC_STAGE declares its parameters and opens a device
// function, which a launch of its own or a packed launch calls.
//@ stage
@comment@
TGC_STAGE(@name@,
  @params@
) {
  @body@
}
//@ pack
// @comment@
TGC_STAGE(@name@,
  @params@
) {
  @choices@
}
