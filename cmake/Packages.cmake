# Debian's packages from a portable build, by `cpack`: the command line, and what a C++ program is built with.
# deploy/package.sh makes them. The daemon has none: its LibTorch comes from Python's index, so it comes as a wheel.
if(NOT PENSTOCK_PORTABLE)
  return()
endif()
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME penstock)
set(CPACK_PACKAGE_VERSION "${PROJECT_VERSION}")
set(CPACK_PACKAGE_CONTACT "Penstock's maintainers <maintainers@penstock.invalid>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL command_line development)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)

set(CPACK_DEBIAN_COMMAND_LINE_PACKAGE_NAME penstock)
set(CPACK_DEBIAN_COMMAND_LINE_PACKAGE_SECTION science)
set(CPACK_DEBIAN_COMMAND_LINE_PACKAGE_DEPENDS "libc6 (>= 2.36), libgcc-s1 (>= 12), libisal2 (>= 2.30), libstdc++6 (>= 12)")
set(CPACK_DEBIAN_COMMAND_LINE_DESCRIPTION "command line of Penstock, which trains and serves models as pipelines
The daemon penstockd holds models that are cut into stages and runs them as
pipelines for remote clients. This package has the program penstock, which
creates pipelines on a daemon, trains and infers with them, and shows what
they do. The daemon itself comes as a wheel, as it needs LibTorch.")

# The archives were compiled with the headers of Debian 12. Those of protobuf, gRPC and Abseil promise no compatibility with
# other versions, so that an older or newer Debian refuses the package.
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libpenstock-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "libabsl-dev (>= 20220623), libabsl-dev (<< 20220624), libgrpc++-dev (>= 1.51), \
libgrpc++-dev (<< 1.52), libisal-dev, libprotobuf-dev (>= 3.21.12), libprotobuf-dev (<< 3.21.13), libssl-dev (>= 3.0), \
protobuf-compiler, protobuf-compiler-grpc")
set(CPACK_DEBIAN_DEVELOPMENT_DESCRIPTION "C++ client of Penstock, and headers for layers of one's own
The client library and the CMake package Penstock, for programs in C++ that
train and infer with pipelines on a daemon of Penstock; the messages and
services of the wire for other languages; headers for libraries of layers
that the daemon loads. The archives fit protobuf, gRPC and Abseil of Debian 12
only.")
include(CPack)
