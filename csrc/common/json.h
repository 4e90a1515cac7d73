// JSON that `explain` returns: objects and lists, written field by field.
#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace xgemm {

inline std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned>(c));
      out += code;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

// Fields keep their order.
class JsonObject {
 public:
  JsonObject& add(std::string_view name, std::string_view text) {
    return add_raw(name, json_string(text));
  }
  JsonObject& add(std::string_view name, const char* text) {
    return add(name, std::string_view(text));
  }
  JsonObject& add(std::string_view name, bool value) {
    return add_raw(name, value ? "true" : "false");
  }
  template <std::integral Integer>
  JsonObject& add(std::string_view name, Integer value) {
    return add_raw(name, std::to_string(value));
  }
  JsonObject& add(std::string_view name, double value) {
    if (!std::isfinite(value)) return add_raw(name, "null");
    char text[32];
    std::snprintf(text, sizeof text, "%.6g", value);
    return add_raw(name, text);
  }
  // `json`: an object, or a list.
  JsonObject& add_raw(std::string_view name, std::string_view json) {
    body_ += (body_.empty() ? "" : ", ") + json_string(name) + ": " + std::string(json);
    return *this;
  }

  std::string text() const { return "{" + body_ + "}"; }

 private:
  std::string body_;
};

class JsonList {
 public:
  void add(const JsonObject& object) { body_ += (body_.empty() ? "" : ", ") + object.text(); }
  std::string text() const { return "[" + body_ + "]"; }

 private:
  std::string body_;
};

// Of a choice on the CPU, where a rule gives each problem its kernel: no candidates are weighed.
inline std::string rule_json(std::string_view family, const JsonObject& problem,
                             const JsonObject& choice) {
  return JsonObject()
      .add("family", family)
      .add("device", "cpu")
      .add_raw("problem", problem.text())
      .add_raw("choice", choice.text())
      .add_raw("candidates", JsonList().text())
      .text();
}

}  // namespace xgemm
