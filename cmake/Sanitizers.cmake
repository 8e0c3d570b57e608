# One switch: PENSTOCK_SANITIZE is address,undefined or thread, for the whole build.
#
# Output: PENSTOCK_SANITIZER_OPTIONS, the environment of every test.
set(PENSTOCK_SANITIZER_OPTIONS "")
if(NOT PENSTOCK_SANITIZE)
  return()
endif()
add_compile_options(-fsanitize=${PENSTOCK_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
add_link_options(-fsanitize=${PENSTOCK_SANITIZE})
if(PENSTOCK_SANITIZE STREQUAL "thread")
  # One intra-op thread: LibTorch's own pool is not built for the sanitizer.
  set(PENSTOCK_SANITIZER_OPTIONS "TSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/tests/tsan.supp" "OMP_NUM_THREADS=1")
else()
  set(PENSTOCK_SANITIZER_OPTIONS "UBSAN_OPTIONS=print_stacktrace=1")
endif()
