# Compiler switches for the whole tree: launcher, linker, build types, sanitizers.
find_program(PENSTOCK_CCACHE ccache)
if(PENSTOCK_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Paths relative to the source tree, so that build folders share objects.
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env
      "CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}" CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros
      "${PENSTOCK_CCACHE}")
endif()
# Not for packages: the order in which mold 1.10 sorts unwind entries of one address depends on how many cores there are.
find_program(PENSTOCK_MOLD mold)
if(PENSTOCK_MOLD AND NOT PENSTOCK_PORTABLE)
  add_link_options(-fuse-ld=mold)
endif()

set(CMAKE_CXX_FLAGS_RELEASE "-O2")  # keeps assertions of ours; NDEBUG stays off on purpose
set(CMAKE_CXX_FLAGS_DEBUG "-O0 -g1")
set(CMAKE_CXX_FLAGS_SANITIZE "-O0 -g1")  # the build type of the sanitizer presets: half the time of -O1 to build
set(CMAKE_CXX_FLAGS_FUZZ "-O1 -g1")  # where inputs per second count

# Programs find the CUDA module where it is built; where they are installed, beside themselves.
list(APPEND CMAKE_BUILD_RPATH "$ORIGIN" "${CMAKE_BINARY_DIR}/engine/device")
set(CMAKE_INSTALL_RPATH "$ORIGIN")

include(Sanitizers)
