// The exceptions that reach Python as ValueError and IndexError, with the text as written here.
#pragma once

#include <ios>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace xgemm::ops {

template <typename... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream text;
  text << std::boolalpha;
  (text << ... << parts);
  return text.str();
}

// Text that came from outside, as a message shows it: nothing in it steers a terminal or ends the
// message, and at most 200 of its bytes are in it.
inline std::string printable(std::string_view text) {
  constexpr size_t kMax = 200;
  constexpr char kHex[] = "0123456789abcdef";
  std::string shown = "'";
  for (const char byte : text.substr(0, kMax)) {
    const auto code = static_cast<unsigned char>(byte);
    if (code >= 0x20 && code < 0x7f) {
      shown += byte;
    } else {
      shown.append("\\x").append({kHex[code >> 4], kHex[code & 15]});
    }
  }
  return shown + (text.size() > kMax ? "'..." : "'");
}

// value_error("mul: K must match, got a ", shape(a), " and b ", shape(b));
template <typename... Parts>
[[noreturn, gnu::cold, gnu::noinline]] void value_error(const Parts&... parts) {
  throw std::invalid_argument(concat(parts...));
}

template <typename... Parts>
[[noreturn, gnu::cold, gnu::noinline]] void index_error(const Parts&... parts) {
  throw std::out_of_range(concat(parts...));
}

}  // namespace xgemm::ops
