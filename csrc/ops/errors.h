// The exceptions that reach Python as ValueError and IndexError, with the text as written here.
#pragma once

#include <ios>
#include <sstream>
#include <stdexcept>
#include <string>

namespace xgemm::ops {

template <typename... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream text;
  text << std::boolalpha;
  (text << ... << parts);
  return text.str();
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
