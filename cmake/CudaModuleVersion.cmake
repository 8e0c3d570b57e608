# penstock_cuda_module_version(OUT TORCH HEADER...): a number for the headers that a program and libpenstock_cuda.so share and
# for the version of LibTorch. Other bytes of a header, or another LibTorch, give another number.
function(penstock_cuda_module_version out torch)
  set(sums "${torch}")
  foreach(header IN LISTS ARGN)
    file(SHA256 "${header}" sum)
    string(APPEND sums " ${sum}")
  endforeach()
  string(SHA256 sum "${sums}")
  string(SUBSTRING "${sum}" 0 7 digits)  # an int, and not negative
  math(EXPR number "0x${digits}")
  set(${out} ${number} PARENT_SCOPE)
endfunction()
