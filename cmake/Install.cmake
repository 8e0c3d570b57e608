# What `cmake --install` puts into a prefix: the programs, and the CMake package Penstock with two components, the C++
# client and the headers of layers of one's own. docs/install.md tells how to use it.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME development)  # all but the programs

# A folder of their own: some are called as other projects' are (google/rpc/status.pb.h).
set(PENSTOCK_INSTALL_HEADERS "${CMAKE_INSTALL_INCLUDEDIR}/penstock")
set(PENSTOCK_INSTALL_PACKAGE "${CMAKE_INSTALL_LIBDIR}/cmake/Penstock")

# penstock_install_headers(root a/b.h ...) installs headers under the names by which they are included.
function(penstock_install_headers root)
  foreach(header IN LISTS ARGN)
    get_filename_component(folder "${header}" DIRECTORY)
    install(FILES "${root}/${header}" DESTINATION "${PENSTOCK_INSTALL_HEADERS}/${folder}")
  endforeach()
endfunction()

# penstock_install_library(target ...) installs libraries under the names that they have in this tree: penstock::client.
function(penstock_install_library)
  foreach(target IN LISTS ARGN)
    string(REPLACE "penstock_" "" name "${target}")
    set_target_properties(${target} PROPERTIES EXPORT_NAME "${name}")
  endforeach()
  install(TARGETS ${ARGN} EXPORT PenstockTargets ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
endfunction()

# penstock_install_package() writes the package, when all targets are known.
function(penstock_install_package)
  install(EXPORT PenstockTargets NAMESPACE penstock:: DESTINATION "${PENSTOCK_INSTALL_PACKAGE}")
  set(known_torch_python "${PENSTOCK_TORCH_PYTHON}")
  if(PENSTOCK_PORTABLE)
    set(known_torch_python "")  # the folders of this machine are none of another's
  endif()
  configure_package_config_file("${CMAKE_SOURCE_DIR}/cmake/PenstockConfig.cmake.in"
    "${CMAKE_BINARY_DIR}/PenstockConfig.cmake" INSTALL_DESTINATION "${PENSTOCK_INSTALL_PACKAGE}"
    NO_CHECK_REQUIRED_COMPONENTS_MACRO)
  write_basic_package_version_file("${CMAKE_BINARY_DIR}/PenstockConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
  install(FILES "${CMAKE_BINARY_DIR}/PenstockConfig.cmake" "${CMAKE_BINARY_DIR}/PenstockConfigVersion.cmake"
    "${CMAKE_SOURCE_DIR}/cmake/FindLibTorch.cmake" DESTINATION "${PENSTOCK_INSTALL_PACKAGE}")
endfunction()
