# One switch: PENSTOCK_SANITIZE is address,undefined or thread, for the whole build; fuzzer-no-link beside it makes the
# code tell libFuzzer what it covers.
#
# Output: PENSTOCK_SANITIZER_OPTIONS, the environment of every test, and PENSTOCK_SANITIZER_OPTIONS_GRPC, of tests that
# run gRPC.
set(PENSTOCK_SANITIZER_OPTIONS "")
set(PENSTOCK_SANITIZER_OPTIONS_GRPC "")
if(NOT PENSTOCK_SANITIZE)
  return()
endif()
add_compile_options(-fsanitize=${PENSTOCK_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
add_link_options(-fsanitize=${PENSTOCK_SANITIZE})
if(PENSTOCK_SANITIZE STREQUAL "thread")
  # One intra-op thread: LibTorch's own pool is not built for the sanitizer.
  set(options "suppressions=${CMAKE_SOURCE_DIR}/tests/tsan.supp")
  set(PENSTOCK_SANITIZER_OPTIONS "TSAN_OPTIONS=${options}" "OMP_NUM_THREADS=1")
  # libgrpc is not built for it either: what it does to memory is not looked at, what the handlers do is.
  set(PENSTOCK_SANITIZER_OPTIONS_GRPC "TSAN_OPTIONS=${options} ignore_noninstrumented_modules=1" "OMP_NUM_THREADS=1")
else()
  # Memory that is not there is refused, as without the sanitizer.
  set(PENSTOCK_SANITIZER_OPTIONS "ASAN_OPTIONS=allocator_may_return_null=1" "UBSAN_OPTIONS=print_stacktrace=1")
  set(PENSTOCK_SANITIZER_OPTIONS_GRPC "${PENSTOCK_SANITIZER_OPTIONS}")
endif()
