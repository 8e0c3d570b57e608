# Programs for machines without Debian's gRPC, protobuf and Abseil: PENSTOCK_PORTABLE links the archives of these packages
# in place of their shared libraries, and keeps their symbols inside, so that libraries of a process with another gRPC or
# protobuf never meet them. The folder of the sources is in none of the files, whose bytes do not depend on its name: what is
# compiled differs from the preset release in that alone.
#
# What has no archive (ISA-L, CivetWeb), what must be one for the whole process (jemalloc, which LibTorch allocates with)
# and what is opened by name (UCX) stays shared; deploy/package puts it beside the programs.
option(PENSTOCK_PORTABLE "Link gRPC, protobuf, Abseil, OpenSSL and SQLite from their archives" OFF)
if(NOT PENSTOCK_PORTABLE)
  return()
endif()

# penstock_link_archives(pattern) points the imported targets whose names fit at the archives beside their shared
# libraries. PENSTOCK_ARCHIVES lists these.
function(penstock_link_archives pattern)
  get_property(targets DIRECTORY PROPERTY IMPORTED_TARGETS)
  foreach(target IN LISTS targets)
    get_target_property(type ${target} TYPE)
    if(NOT type MATCHES "SHARED_LIBRARY|UNKNOWN_LIBRARY" OR NOT target MATCHES "${pattern}")
      continue()
    endif()
    get_target_property(configurations ${target} IMPORTED_CONFIGURATIONS)
    foreach(suffix IN ITEMS "" ${configurations})
      string(TOUPPER "IMPORTED_LOCATION_${suffix}" property)
      string(REGEX REPLACE "_$" "" property "${property}")
      get_target_property(shared ${target} ${property})
      string(REGEX REPLACE "\\.so[.0-9]*$" ".a" archive "${shared}")
      if(EXISTS "${archive}" AND NOT archive STREQUAL shared)
        set_target_properties(${target} PROPERTIES ${property} "${archive}")
        get_filename_component(name "${archive}" NAME)
        list(APPEND names "${name}")
      elseif(shared)
        message(FATAL_ERROR "the portable programs need an archive beside ${shared}: none for ${target}")
      endif()
    endforeach()
  endforeach()
  list(REMOVE_DUPLICATES names)
  set(PENSTOCK_ARCHIVES "${names}" PARENT_SCOPE)
endfunction()

# The places that broken assertions name: from the root of the sources, or from the build folder for what is generated there.
# Through ccache (Compiler.cmake) they are relative to the build folder, without it they are absolute; the last of the options
# that fits counts, so the build folder, which is in the sources', comes last.
add_compile_options("-fmacro-prefix-map=../=build/" "-fmacro-prefix-map=../../=" "-fmacro-prefix-map=${CMAKE_SOURCE_DIR}/="
  "-fmacro-prefix-map=${CMAKE_BINARY_DIR}/=")
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)

# penstock_find_torch_from_here(target) makes a program look for LibTorch relative to itself, in its build folder; where it is
# packed it has other paths.
function(penstock_find_torch_from_here target)
  get_target_property(options LibTorch::cpu INTERFACE_LINK_OPTIONS)
  list(FILTER options EXCLUDE REGEX "^-Wl,-rpath,")
  set_target_properties(LibTorch::cpu PROPERTIES INTERFACE_LINK_OPTIONS "${options}")
  file(RELATIVE_PATH lib "${CMAKE_CURRENT_BINARY_DIR}" "${LibTorch_ROOT}/lib")
  set_property(TARGET ${target} APPEND PROPERTY INSTALL_RPATH "$ORIGIN/${lib}")
endfunction()

penstock_link_archives("^(absl|gRPC|protobuf|OpenSSL|SQLite|ZLIB|c-ares|re2)::")
find_library(PENSTOCK_RE2 libre2.a REQUIRED)  # known to gRPC by its name, from pkg-config
set_target_properties(re2::re2 PROPERTIES INTERFACE_LINK_LIBRARIES "${PENSTOCK_RE2};Threads::Threads")
# Not ALL: our own archives hold what layers of one's own are linked against (engine/own_layers/exported_symbols.txt).
foreach(archive IN LISTS PENSTOCK_ARCHIVES ITEMS libre2.a)
  add_link_options("-Wl,--exclude-libs=${archive}")
endforeach()
