# One set of large headers, parsed once, for all of our targets that use LibTorch. In builds with sanitizers only: there it
# takes a third off each file's time; the compiler of the other builds reads such a set as slowly as the headers.
set(PENSTOCK_PRECOMPILED
  <algorithm> <functional> <map> <memory> <optional> <string> <variant> <vector>
  <ATen/core/Tensor.h> <ATen/core/grad_mode.h> <gmock/gmock.h> <gtest/gtest.h>
  <absl/status/status.h> <absl/status/statusor.h> <absl/strings/str_cat.h> <absl/synchronization/mutex.h>
  <absl/synchronization/notification.h> <absl/time/time.h>)

# Whether a target links LibTorch, by itself or through our own.
function(penstock_uses_torch target result)
  get_target_property(links ${target} LINK_LIBRARIES)
  set(${result} FALSE PARENT_SCOPE)
  foreach(link IN LISTS links)
    if(link STREQUAL "LibTorch::cpu")
      set(${result} TRUE PARENT_SCOPE)
      return()
    endif()
    if(TARGET "${link}" AND link MATCHES "^penstock")
      penstock_uses_torch("${link}" uses)
      if(uses)
        set(${result} TRUE PARENT_SCOPE)
        return()
      endif()
    endif()
  endforeach()
endfunction()

# penstock_precompile(target) gives a library or a program the set. Both kinds need their own: they differ in how their
# code may be placed.
function(penstock_precompile target)
  if(NOT PENSTOCK_SANITIZE OR NOT PENSTOCK_TESTS)
    return()
  endif()
  penstock_uses_torch(${target} uses)
  get_target_property(type ${target} TYPE)
  if(uses AND type STREQUAL "EXECUTABLE")
    target_precompile_headers(${target} REUSE_FROM penstock_precompiled_program)
  elseif(uses)
    target_precompile_headers(${target} REUSE_FROM penstock_precompiled_library)
  endif()
endfunction()

if(PENSTOCK_SANITIZE AND PENSTOCK_TESTS)
  # Without times of files, so that ccache may keep what was made with it. With -pthread for all, as gRPC's users have it:
  # the compiler takes a set for switches of its own only.
  add_compile_options("SHELL:-Xclang -fno-pch-timestamp" -pthread)
  file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/precompiled.cc" CONTENT "int main() { return 0; }\n")
  add_library(penstock_precompiled_library STATIC "${CMAKE_BINARY_DIR}/precompiled.cc")
  add_executable(penstock_precompiled_program "${CMAKE_BINARY_DIR}/precompiled.cc")
  foreach(target penstock_precompiled_library penstock_precompiled_program)
    set_target_properties(${target} PROPERTIES UNITY_BUILD OFF)
    target_link_libraries(${target} PRIVATE LibTorch::cpu GTest::gmock absl::statusor absl::strings absl::synchronization
      absl::time penstock_warnings)
    target_precompile_headers(${target} PRIVATE ${PENSTOCK_PRECOMPILED})
  endforeach()
endif()
