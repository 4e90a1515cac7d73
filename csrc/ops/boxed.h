// String arguments of the ops, read from the stable ABI without a leak.
//
// The conversion that comes with the headers allocates a std::string for each `str` argument and
// never frees it. These read the text where it lies and free it. They do not throw: the arguments
// converted after one that throws would never be released, so a name that is not known is kept,
// and the op asks for the value once it owns all of its arguments.
#pragma once

#include <torch/csrc/stable/library.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/activation.h"
#include "common/precision.h"
#include "ops/errors.h"

namespace xgemm::ops {

// The names that an enumeration's values have in a schema, in the order of the values.
template <typename Enum>
struct EnumNames;

template <>
struct EnumNames<Activation> {
  static constexpr std::string_view kArgument = "activation";
  static constexpr std::array<std::string_view, 5> kNames = {"none", "relu", "gelu", "gelu_tanh",
                                                             "silu"};
};

template <>
struct EnumNames<Precision> {
  static constexpr std::string_view kArgument = "precision";
  static constexpr std::array<std::string_view, 3> kNames = {"ieee", "tf32x3", "tf32"};
};

// A `str` argument that names a value of Enum.
template <typename Enum>
class EnumArg {
 public:
  explicit EnumArg(std::string_view text) {
    const auto& names = EnumNames<Enum>::kNames;
    for (size_t i = 0; i < names.size(); ++i) {
      if (text == names[i]) {
        index_ = static_cast<int8_t>(i);
        return;
      }
    }
    unknown_ = text;
  }

  Enum value(const char* op) const {
    if (index_ < 0) refuse(op);
    return static_cast<Enum>(index_);
  }

 private:
  [[noreturn, gnu::cold, gnu::noinline]] void refuse(const char* op) const {
    std::string allowed;
    for (std::string_view name : EnumNames<Enum>::kNames) {
      allowed += (allowed.empty() ? "'" : ", '") + std::string(name) + "'";
    }
    value_error(op, ": ", EnumNames<Enum>::kArgument, " must be one of ", allowed, ", got ",
                printable(unknown_));
  }

  int8_t index_ = -1;
  std::string unknown_;
};

// A `str` argument as it is.
struct StringArg {
  explicit StringArg(std::string_view text) : text(text) {}
  std::string text;
};

// Owns the string that the dispatcher handed over.
class BoxedString {
 public:
  explicit BoxedString(StableIValue value)
      : handle_(torch::stable::detail::to<StringHandle>(value)) {}
  BoxedString(const BoxedString&) = delete;
  BoxedString& operator=(const BoxedString&) = delete;
  ~BoxedString() { torch_delete_string(handle_); }

  std::string_view view() const {
    const char* data = nullptr;
    size_t length = 0;
    TORCH_ERROR_CODE_CHECK(torch_string_c_str(handle_, &data));
    TORCH_ERROR_CODE_CHECK(torch_string_length(handle_, &length));
    return {data, length};
  }

 private:
  StringHandle handle_;
};

}  // namespace xgemm::ops

HIDDEN_NAMESPACE_BEGIN(torch, stable, detail)

template <typename Enum>
struct ToImpl<xgemm::ops::EnumArg<Enum>> {
  static xgemm::ops::EnumArg<Enum> call(StableIValue value, uint64_t, bool) {
    return xgemm::ops::EnumArg<Enum>(xgemm::ops::BoxedString(value).view());
  }
};

template <>
struct ToImpl<xgemm::ops::StringArg> {
  static xgemm::ops::StringArg call(StableIValue value, uint64_t, bool) {
    return xgemm::ops::StringArg(xgemm::ops::BoxedString(value).view());
  }
};

HIDDEN_NAMESPACE_END(torch, stable, detail)
