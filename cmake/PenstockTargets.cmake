# Functions that declare the targets of Penstock: one place for warnings, include paths, labels.

# The switches that only our own targets get. A designated initialiser leaves members out on purpose.
add_library(penstock_warnings INTERFACE)
target_compile_options(penstock_warnings INTERFACE -Wall -Wextra -Wno-sign-compare -Wno-missing-field-initializers
  -Werror=return-type -Werror=unused-result)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  target_compile_options(penstock_warnings INTERFACE -Wthread-safety -Werror=thread-safety)
else()
  # It takes the sources of a unit for headers, whose classes had better have no members of an unnamed namespace.
  target_compile_options(penstock_warnings INTERFACE -Wno-subobject-linkage)
endif()

include(Precompiled)

# penstock_library(room SOURCES a.cc ... DEPENDS penstock::base ... PRIVATE_DEPENDS ...)
# Declares the room's static library penstock_<room> with alias penstock::<room>.
function(penstock_library room)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPENDS;PRIVATE_DEPENDS" ${ARGN})
  add_library(penstock_${room} STATIC ${arg_SOURCES})
  add_library(penstock::${room} ALIAS penstock_${room})
  target_include_directories(penstock_${room} PUBLIC
    "$<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}>" "$<INSTALL_INTERFACE:${PENSTOCK_INSTALL_HEADERS}>")
  target_link_libraries(penstock_${room} PUBLIC ${arg_DEPENDS}
    PRIVATE ${arg_PRIVATE_DEPENDS} $<BUILD_INTERFACE:penstock_warnings>)
  if(room IN_LIST PENSTOCK_QUICK_ROOMS)  # to build one again that has changed takes seconds
    set_target_properties(penstock_${room} PROPERTIES UNITY_BUILD OFF)
    target_compile_options(penstock_${room} PRIVATE -O0)
  elseif(room IN_LIST PENSTOCK_PLAIN_ROOMS)  # in units, as most of their files include the same large headers
    target_compile_options(penstock_${room} PRIVATE -O0)
  endif()
  penstock_precompile(penstock_${room})
endfunction()

# penstock_test(name SOURCES a_test.cc ... DEPENDS ... [APART b_test.cc ...] [LABELS ...] [TIMEOUT seconds]
#               [ENVIRONMENT A=1 ...])
# Declares a GoogleTest program and registers it with ctest as one test. Without LABELS its label is the kind of test,
# the folder below tests/. A unity build compiles the sources in units: the helpers of its files need names of their own.
# Those in APART, whose helpers are called like others', stay alone.
function(penstock_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "SOURCES;DEPENDS;APART;LABELS;ENVIRONMENT" ${ARGN})
  if(NOT PENSTOCK_TESTS)
    return()
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  if(NOT arg_LABELS)
    file(RELATIVE_PATH folder "${CMAKE_SOURCE_DIR}/tests" "${CMAKE_CURRENT_SOURCE_DIR}")
    string(REGEX MATCH "^[^/]+" arg_LABELS "${folder}")
  endif()
  add_executable(${name} ${arg_SOURCES})
  set_source_files_properties(${arg_APART} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  target_link_libraries(${name} PRIVATE ${arg_DEPENDS} GTest::gmock GTest::gtest_main penstock_warnings)
  if(PENSTOCK_SANITIZE STREQUAL "thread")
    target_link_libraries(${name} PRIVATE penstock_tsan_mutex)  # tests/sanitize
  endif()
  penstock_precompile(${name})
  add_test(NAME ${name} COMMAND ${name})
  set(sanitizer_options "${PENSTOCK_SANITIZER_OPTIONS}")
  if(arg_DEPENDS MATCHES "penstock::(rpc|client|server|peer|peer_group)")
    set(sanitizer_options "${PENSTOCK_SANITIZER_OPTIONS_GRPC}")
  endif()
  # What GoogleTest calls TempDir(): the same test of another build may run at the same time.
  set(scratch "${CMAKE_CURRENT_BINARY_DIR}/${name}.tmp")
  file(MAKE_DIRECTORY "${scratch}")
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT}
    ENVIRONMENT "TEST_TMPDIR=${scratch};${arg_ENVIRONMENT};${sanitizer_options}")
endfunction()

# penstock_bench(name SOURCES ... DEPENDS ...) declares a benchmark program; it is not run by ctest.
function(penstock_bench name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPENDS" ${ARGN})
  if(NOT PENSTOCK_BENCH)
    return()
  endif()
  add_executable(${name} ${arg_SOURCES})
  set_target_properties(${name} PROPERTIES UNITY_BUILD OFF)
  target_link_libraries(${name} PRIVATE penstock::heap ${arg_DEPENDS} penstock_warnings)  # allocates as the daemon does
endfunction()
