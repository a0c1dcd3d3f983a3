# SPDX-License-Identifier: Apache-2.0
# libtorch as scripts/setup.sh unpacked it: headers, libtorch_cpu, libc10, libgomp. Never find_package(Torch): it wants
# a CUDA toolkit and takes over the flags.
set(EXPERTMESH_TORCH_VERSION 2.11.0)
if(DEFINED ENV{EXPERTMESH_CACHE})
  set(expertmesh_cache $ENV{EXPERTMESH_CACHE})
elseif(DEFINED ENV{XDG_CACHE_HOME})
  set(expertmesh_cache $ENV{XDG_CACHE_HOME}/expertmesh)
else()
  set(expertmesh_cache $ENV{HOME}/.cache/expertmesh)
endif()
set(EXPERTMESH_TORCH_ROOT ${expertmesh_cache}/libtorch-${EXPERTMESH_TORCH_VERSION}
    CACHE PATH "Folder with include/ and lib/ of libtorch")
if(NOT EXISTS ${EXPERTMESH_TORCH_ROOT}/lib/libtorch_cpu.so)
  message(FATAL_ERROR "No libtorch in ${EXPERTMESH_TORCH_ROOT}. Run scripts/setup.sh first.")
endif()

# libtorch_cpu.so of the CUDA wheel wants libcudart.so.13 and libcupti.so.13 at load time.
find_library(EXPERTMESH_CUDART libcudart.so.13
             PATHS ${EXPERTMESH_TORCH_ROOT}/lib /usr/local/cuda/lib64 /usr/local/cuda/targets/x86_64-linux/lib)
find_library(EXPERTMESH_CUPTI libcupti.so.13
             PATHS ${EXPERTMESH_TORCH_ROOT}/lib /usr/local/cuda/lib64 /usr/local/cuda/extras/CUPTI/lib64
                   /usr/local/cuda/targets/x86_64-linux/lib)
if(NOT EXPERTMESH_CUDART OR NOT EXPERTMESH_CUPTI)
  message(FATAL_ERROR "libcudart.so.13 and libcupti.so.13 were not found. Run scripts/setup.sh first.")
endif()
get_filename_component(expertmesh_cudart_dir ${EXPERTMESH_CUDART} DIRECTORY)
get_filename_component(expertmesh_cupti_dir ${EXPERTMESH_CUPTI} DIRECTORY)

# The wheel's include/ holds another fmt than the one we link: ours is found first.
find_path(EXPERTMESH_FMT_INCLUDE fmt/format.h NO_CACHE REQUIRED)
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/include-first)
file(CREATE_LINK ${EXPERTMESH_FMT_INCLUDE}/fmt ${CMAKE_BINARY_DIR}/include-first/fmt SYMBOLIC)

add_library(expertmesh_torch INTERFACE)
target_include_directories(expertmesh_torch SYSTEM INTERFACE
  ${CMAKE_BINARY_DIR}/include-first ${EXPERTMESH_TORCH_ROOT}/include ${EXPERTMESH_TORCH_ROOT}/include/torch/csrc/api/include)
# at::parallel_for is a loop of this header's own: without -fopenmp it would run on one thread.
target_compile_options(expertmesh_torch INTERFACE -fopenmp)
set(expertmesh_lib ${EXPERTMESH_TORCH_ROOT}/lib)
target_link_directories(expertmesh_torch INTERFACE ${expertmesh_lib})
target_link_libraries(expertmesh_torch INTERFACE -ltorch_cpu -lc10 -l:libgomp.so.1)
target_link_options(expertmesh_torch INTERFACE
  -Wl,--disable-new-dtags,-rpath,${expertmesh_lib}:${expertmesh_cudart_dir}:${expertmesh_cupti_dir}
  -Wl,-rpath-link,${expertmesh_lib}:${expertmesh_cudart_dir}:${expertmesh_cupti_dir})
