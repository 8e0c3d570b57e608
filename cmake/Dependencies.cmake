# Every outside package, in order: protobuf and gRPC before LibTorch, whose wheel carries older protobuf headers.
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(absl REQUIRED CONFIG)
find_package(Protobuf REQUIRED)   # module mode: Debian ships no package file
find_package(nlohmann_json REQUIRED CONFIG)
find_library(PENSTOCK_ISAL isal REQUIRED)  # linked by its name: it has no package file, and ours is to name no path
find_library(PENSTOCK_JEMALLOC jemalloc REQUIRED)  # by its name, too
find_package(OpenSSL REQUIRED)
find_package(SQLite3 3.37 REQUIRED)  # strict tables
find_package(ucx REQUIRED CONFIG)
add_library(ucx::headers INTERFACE IMPORTED)  # only these: nothing of ours may load its libraries at its start
target_include_directories(ucx::headers INTERFACE $<TARGET_PROPERTY:ucx::ucp,INTERFACE_INCLUDE_DIRECTORIES>)
find_package(gRPC REQUIRED CONFIG)
find_program(PENSTOCK_GRPC_PLUGIN grpc_cpp_plugin REQUIRED)
find_package(prometheus-cpp REQUIRED CONFIG)
find_library(PENSTOCK_CIVETWEB civetweb REQUIRED)
find_package(CLI11 REQUIRED CONFIG)
if(PENSTOCK_TESTS)
  find_package(GTest REQUIRED CONFIG)
endif()
if(PENSTOCK_BENCH)
  find_package(benchmark REQUIRED CONFIG)
endif()
include(Portable)  # before LibTorch, which is always shared
find_package(LibTorch 2.11 REQUIRED)
