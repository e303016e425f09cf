# For find_package(hgemm CONFIG). Defines hgemm::hgemm (shared library) and hgemm::hgemm_static.
get_filename_component(_hgemm_root "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

foreach(_hgemm_file libhgemm.so.@ABI@ libhgemm.a)
  if(NOT EXISTS "${_hgemm_root}/lib/${_hgemm_file}")
    set(hgemm_FOUND FALSE)
    set(hgemm_NOT_FOUND_MESSAGE "${_hgemm_root}/lib/${_hgemm_file} does not exist: build it with add_subdirectory(${_hgemm_root})")
    return()
  endif()
endforeach()

include(CMakeFindDependencyMacro)
find_dependency(Threads)

if(NOT TARGET hgemm::hgemm)
  add_library(hgemm::hgemm SHARED IMPORTED)
  set_target_properties(hgemm::hgemm PROPERTIES
    IMPORTED_LOCATION "${_hgemm_root}/lib/libhgemm.so.@ABI@"
    IMPORTED_SONAME libhgemm.so.@ABI@
    INTERFACE_INCLUDE_DIRECTORIES "${_hgemm_root}/include")

  add_library(hgemm::hgemm_static STATIC IMPORTED)
  set_target_properties(hgemm::hgemm_static PROPERTIES
    IMPORTED_LOCATION "${_hgemm_root}/lib/libhgemm.a"
    INTERFACE_INCLUDE_DIRECTORIES "${_hgemm_root}/include"
    INTERFACE_LINK_LIBRARIES "Threads::Threads;${CMAKE_DL_LIBS}")
endif()
unset(_hgemm_root)
