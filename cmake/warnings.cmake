# Compiler and linker settings shared by every target.
add_compile_options(
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wold-style-cast
  -Wnon-virtual-dtor -Woverloaded-virtual -Wcast-align -Wformat=2 -fno-omit-frame-pointer)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options(-Wduplicated-cond -Wlogical-op)
else()
  add_compile_options(-Wthread-safety -Wthread-safety-negative -Wno-thread-safety-negative)
endif()
if(LARDER_WERROR)
  add_compile_options(-Werror)
endif()
if(LARDER_SANITIZE)
  add_compile_options(-fsanitize=${LARDER_SANITIZE} -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${LARDER_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # g++ 12 sees uninitialised members in empty optionals once the sanitizers' checks are in the way.
    add_compile_options(-Wno-maybe-uninitialized)
  endif()
endif()
if(LARDER_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
