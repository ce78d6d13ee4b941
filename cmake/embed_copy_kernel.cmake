# Writes the bytes of INPUT as C++ to OUTPUT: cmake -DINPUT=... -DOUTPUT=... -P embed_copy_kernel.cmake
file(READ ${INPUT} hex HEX)
string(LENGTH "${hex}" digits)
if(digits EQUAL 0)
  message(FATAL_ERROR "${INPUT} is empty")
endif()
math(EXPR count "${digits} / 2")
string(REGEX REPLACE "(................................)" "\\1\n" hex "${hex}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
# The driver reads the image in words.
file(WRITE ${OUTPUT} "#include <array>
#include <span>

namespace larder::devices {

namespace {

alignas(16) constexpr std::array<unsigned char, ${count}> kBytes{
${bytes}};

}  // namespace

extern const std::span<const unsigned char> kCopyKernelBytes;
const std::span<const unsigned char> kCopyKernelBytes(kBytes);

}  // namespace larder::devices
")
