# SPDX-License-Identifier: Apache-2.0
# Flags of every target of ours.
option(EXPERTMESH_WERROR "Warnings are errors" OFF)
function(expertmesh_options target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wshadow -Wno-psabi -fno-math-errno -Wno-psabi)
  if(EXPERTMESH_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  target_include_directories(${target} PUBLIC ${CMAKE_SOURCE_DIR}/src)
  if(EXPERTMESH_POISON)
    target_compile_definitions(${target} PUBLIC EXPERTMESH_POISON)
  endif()
endfunction()
