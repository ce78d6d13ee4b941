# A room is one folder under src/ and one static library: every *.cc in it but the tests and main.cc.
#
#   room(pool USES base metrics LINKS spdlog::spdlog TEST_LINKS PkgConfig::libzmq)
#
# USES names the rooms whose headers it may include; the ctest "tidy.includes" (scripts/check_includes.py)
# reads these lines and fails on any other include. LINKS names third-party targets; they stay private to the
# room, so that no other room can include their headers by accident. TEST_LINKS are for its tests alone. Files named
# *_test.cc become the room's gtest executable, <room>_test.
function(room name)
  cmake_parse_arguments(ROOM "" "" "USES;LINKS;TEST_LINKS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.cc)
  set(test_sources ${sources})
  list(FILTER sources EXCLUDE REGEX "(_test|/main)\\.cc$")
  list(FILTER test_sources INCLUDE REGEX "_test\\.cc$")
  set(used_rooms ${ROOM_USES})
  list(TRANSFORM used_rooms PREPEND larder_)
  if(sources)
    add_library(larder_${name} STATIC ${sources})
    target_include_directories(larder_${name} PUBLIC ${CMAKE_SOURCE_DIR}/src)
    target_link_libraries(larder_${name} PUBLIC ${used_rooms} PRIVATE ${ROOM_LINKS} Threads::Threads)
  else()
    add_library(larder_${name} INTERFACE)
    target_include_directories(larder_${name} INTERFACE ${CMAKE_SOURCE_DIR}/src)
    target_link_libraries(larder_${name} INTERFACE ${used_rooms})
  endif()
  if(LARDER_TESTS AND test_sources)
    room_tests(${name} ${test_sources})
  endif()
endfunction()

# The rooms whose code several threads enter: their tests run under ThreadSanitizer too.
set(LARDER_THREADED_ROOMS base metrics devices pool cache sessions zmtp transport handlers)
set(LARDER_TSAN_ENVIRONMENT TSAN_OPTIONS=halt_on_error=1:ignore_noninstrumented_modules=1 LARDER_TEST_SCALE=0.2)
add_custom_target(tsan_tests)  # all that a build with LARDER_SANITIZE=thread is for

function(room_tests name)
  add_executable(${name}_test ${ARGN})
  target_link_libraries(${name}_test PRIVATE larder_${name} ${ROOM_LINKS} ${ROOM_TEST_LINKS} GTest::gmock GTest::gtest_main)
  target_compile_definitions(${name}_test PRIVATE LARDER_FIXTURES="${CMAKE_SOURCE_DIR}/tests/fixtures")
  if(name IN_LIST LARDER_THREADED_ROOMS)
    add_dependencies(tsan_tests ${name}_test)
    if(LARDER_SANITIZE STREQUAL "thread")
      set(tsan_test ${name}_test)
    elseif(LARDER_TSAN_BUILD_DIR)
      set(tsan_test ${LARDER_TSAN_BUILD_DIR}/${name}_test)
    endif()
    if(tsan_test)
      add_test(NAME tsan.${name} COMMAND ${tsan_test} --gtest_brief=1)
      set_tests_properties(tsan.${name} PROPERTIES
        LABELS tsan TIMEOUT 600 ENVIRONMENT "${LARDER_TSAN_ENVIRONMENT}")
    endif()
  endif()
  if(NOT LARDER_SANITIZE STREQUAL "thread")
    gtest_discover_tests(${name}_test DISCOVERY_TIMEOUT 60 PROPERTIES
      LABELS unit TIMEOUT 300 ENVIRONMENT UBSAN_OPTIONS=print_stacktrace=1)
  endif()
endfunction()
