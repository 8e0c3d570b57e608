# Finds LibTorch 2.11 inside a `torch` wheel: libtorch_cpu.so and libc10.so, and apart from them the CUDA part.
#
# find_package(Torch) is not used: its package file demands the CUDA toolkit and defines stray macros. The wheel is
# found without importing torch, which would need all of its Python dependencies.
#
# Input:   PENSTOCK_TORCH_PYTHON, the interpreter of the environment that holds the wheel.
# Output:  target LibTorch::cpu, LibTorch_VERSION; LibTorch_CUDA_FOUND or LibTorch_CUDA_MISSING, a sentence, and target
#          LibTorch::cuda. To link it needs neither a GPU nor the wheels that libtorch_cuda.so names (cuBLAS, cuDNN and
#          so on); those are looked for when it is loaded.
set(PENSTOCK_TORCH_PYTHON "${CMAKE_SOURCE_DIR}/build/deps/venv/bin/python" CACHE FILEPATH
    "Python interpreter of the environment that holds the torch wheel")
if(EXISTS "${PENSTOCK_TORCH_PYTHON}" AND NOT LibTorch_ROOT)
  execute_process(
    COMMAND "${PENSTOCK_TORCH_PYTHON}" -c
      "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
    OUTPUT_VARIABLE LibTorch_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(LibTorch_ROOT AND EXISTS "${LibTorch_ROOT}/version.py")
  file(STRINGS "${LibTorch_ROOT}/version.py" version_line REGEX "^__version__")
  string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" LibTorch_VERSION "${version_line}")
endif()
find_library(LibTorch_CPU_LIBRARY torch_cpu PATHS "${LibTorch_ROOT}/lib" NO_DEFAULT_PATH)
find_library(LibTorch_C10_LIBRARY c10 PATHS "${LibTorch_ROOT}/lib" NO_DEFAULT_PATH)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY
  VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE "no torch wheel found: run deploy/setup.sh, or set PENSTOCK_TORCH_PYTHON")

if(LibTorch_FOUND AND NOT TARGET LibTorch::cpu)
  # The wheel carries protobuf 3.13 headers; this link, searched first, brings back the system's.
  set(shadow "${CMAKE_BINARY_DIR}/system-protobuf")
  file(MAKE_DIRECTORY "${shadow}")
  file(CREATE_LINK /usr/include/google "${shadow}/google" SYMBOLIC)
  add_library(LibTorch::cpu INTERFACE IMPORTED)
  target_compile_options(LibTorch::cpu INTERFACE "-I${shadow}")
  target_include_directories(LibTorch::cpu SYSTEM INTERFACE
    "${LibTorch_ROOT}/include" "${LibTorch_ROOT}/include/torch/csrc/api/include")
  file(GLOB nvidia_libs LIST_DIRECTORIES true "${LibTorch_ROOT}/../nvidia/*/lib")
  target_link_libraries(LibTorch::cpu INTERFACE "${LibTorch_CPU_LIBRARY}" "${LibTorch_C10_LIBRARY}")
  target_link_options(LibTorch::cpu INTERFACE
    -Wl,--allow-shlib-undefined "-Wl,-rpath,${LibTorch_ROOT}/lib")
endif()

# The CUDA part, with the headers of the wheels beside torch: never those of a toolkit, which may be of another version.
find_library(LibTorch_CUDA_LIBRARY torch_cuda PATHS "${LibTorch_ROOT}/lib" NO_DEFAULT_PATH)
find_library(LibTorch_C10_CUDA_LIBRARY c10_cuda PATHS "${LibTorch_ROOT}/lib" NO_DEFAULT_PATH)
set(cuda "${LibTorch_ROOT}/../nvidia/cu13")
foreach(name LibTorch_CUDA_HEADERS LibTorch_CRT_HEADERS LibTorch_CUDART_LIBRARY)  # of a folder that was configured otherwise
  if(${name} AND NOT ${name} MATCHES "/nvidia/cu13/")
    unset(${name} CACHE)
  endif()
endforeach()
find_path(LibTorch_CUDA_HEADERS cuda_runtime_api.h PATHS "${cuda}/include" NO_DEFAULT_PATH)
find_path(LibTorch_CRT_HEADERS crt/host_defines.h PATHS "${cuda}/include" NO_DEFAULT_PATH)
find_library(LibTorch_CUDART_LIBRARY NAMES libcudart.so.13 PATHS "${cuda}/lib" NO_DEFAULT_PATH)
mark_as_advanced(LibTorch_CUDA_LIBRARY LibTorch_C10_CUDA_LIBRARY LibTorch_CUDA_HEADERS LibTorch_CRT_HEADERS
                 LibTorch_CUDART_LIBRARY)
set(LibTorch_CUDA_FOUND FALSE)
if(NOT LibTorch_CUDA_LIBRARY OR NOT LibTorch_C10_CUDA_LIBRARY)
  set(LibTorch_CUDA_MISSING "this torch wheel has no libtorch_cuda.so")
elseif(NOT LibTorch_CUDA_HEADERS OR NOT LibTorch_CUDART_LIBRARY)
  set(LibTorch_CUDA_MISSING "nvidia-cuda-runtime 13 is not installed beside torch")
elseif(NOT LibTorch_CRT_HEADERS)
  set(LibTorch_CUDA_MISSING "nvidia-cuda-crt 13 is not installed beside torch")
else()
  set(LibTorch_CUDA_FOUND TRUE)
  if(NOT TARGET LibTorch::cuda)
    add_library(LibTorch::cuda INTERFACE IMPORTED)
    target_include_directories(LibTorch::cuda SYSTEM INTERFACE "${LibTorch_CUDA_HEADERS}" "${LibTorch_CRT_HEADERS}")
    # Nothing of ours may call into libtorch_cuda.so by name: it is linked for the operators that it registers.
    target_link_libraries(LibTorch::cuda INTERFACE LibTorch::cpu "${LibTorch_C10_CUDA_LIBRARY}"
      "${LibTorch_CUDART_LIBRARY}" -Wl,--push-state,--no-as-needed "${LibTorch_CUDA_LIBRARY}" -Wl,--pop-state)
  endif()
endif()
