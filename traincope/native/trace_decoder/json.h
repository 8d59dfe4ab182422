// A strict reader of JSON. What it accepts is JSON, but it does not accept all JSON.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace traincope::traces {

constexpr int kMaxDepth = 64;
constexpr int kMaxNumber = 32, kMaxExponent = 2;  // characters; any longer number may be too large for a decoder

inline bool is_digit(char character) { return character >= '0' && character <= '9'; }

// Characters of a string that stand for themselves: ASCII without controls, quotes and backslashes.
constexpr auto kPlain = [] {
  std::array<bool, 256> plain{};
  for (int character = 0x20; character < 0x80; ++character) plain[character] = character != '"' && character != '\\';
  return plain;
}();

// Whether eight characters are plain. It may deny that of plain ones after another.
inline bool all_plain(const char* at) {
  constexpr uint64_t kOnes = 0x0101010101010101, kHigh = 0x80 * kOnes;
  uint64_t word;
  std::memcpy(&word, at, sizeof(word));
  const uint64_t quote = (word ^ kOnes * '"') - kOnes, backslash = (word ^ kOnes * '\\') - kOnes;
  return (((word - kOnes * 0x20) | quote | backslash | word) & kHigh) == 0;
}

// Reads forward. Each function returns whether it found what it reads; if not, `at` is where it failed: at the end, the
// text was cut. A zero byte must follow the text, so no function reads beyond.
struct Reader {
  const char* at;
  const char* end;
  bool escaped = false;  // the last string has escapes
  bool unusual = false;  // since it was last reset: a string or a number that a decoder may refuse

  void skip_space() {
    while (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t') ++at;
  }

  bool take(char wanted) {
    if (*at != wanted) return false;
    ++at;
    return true;
  }

  bool skip_string() {
    if (!take('"')) return false;
    escaped = false;
    for (;;) {
      while (end - at >= 8 && all_plain(at)) at += 8;
      while (kPlain[static_cast<unsigned char>(*at)]) ++at;
      if (take('"')) return true;
      if (static_cast<unsigned char>(*at) >= 0x80) {
        unusual = true;
        ++at;
      } else if (!skip_escape()) {
        return false;
      }
    }
  }

  bool skip_escape() {
    if (!take('\\')) return false;
    escaped = true;
    if (*at != '\0' && std::strchr("\"\\/bfnrt", *at) != nullptr) {
      ++at;
      return true;
    }
    if (!take('u')) return false;
    unusual = true;
    for (int digit = 0; digit < 4; ++digit, ++at) {
      const char lower = static_cast<char>(*at | 0x20);
      if (!is_digit(*at) && !(lower >= 'a' && lower <= 'f')) return false;
    }
    return true;
  }

  bool skip_digits() {
    if (!is_digit(*at)) return false;
    while (is_digit(*at)) ++at;
    return true;
  }

  bool skip_number() {
    const char* begin = at;
    take('-');
    if (!take('0') && !skip_digits()) return false;
    if (take('.') && !skip_digits()) return false;
    if (*at == 'e' || *at == 'E') {
      ++at;
      if (*at == '+' || *at == '-') ++at;
      const char* exponent = at;
      if (!skip_digits()) return false;
      unusual |= at - exponent > kMaxExponent;
    }
    unusual |= at - begin > kMaxNumber;
    return true;
  }

  bool skip_word(std::string_view word) {
    for (const char character : word) {
      if (!take(character)) return false;
    }
    return true;
  }

  bool skip_value(int depth) {
    switch (*at) {
      case '"': return skip_string();
      case '{': return read_object(depth, [&](std::string_view) { return skip_value(depth + 1); });
      case '[': return skip_array(depth);
      case 't': return skip_word("true");
      case 'f': return skip_word("false");
      case 'n': return skip_word("null");
      default: return skip_number();
    }
  }

  bool skip_array(int depth) {
    if (depth == kMaxDepth || !take('[')) return false;
    skip_space();
    if (take(']')) return true;
    do {
      skip_space();
      if (!skip_value(depth + 1)) return false;
      skip_space();
    } while (take(','));
    return take(']');
  }

  // `read_value` gets each key, without its quotes, and reads the value.
  template <class ReadValue>
  bool read_object(int depth, ReadValue&& read_value) {
    if (depth == kMaxDepth || !take('{')) return false;
    skip_space();
    if (take('}')) return true;
    do {
      skip_space();
      const char* key = at + 1;
      if (!skip_string()) return false;
      const std::string_view name(key, at - 1 - key);
      skip_space();
      if (!take(':')) return false;
      skip_space();
      if (!read_value(name)) return false;
      skip_space();
    } while (take(','));
    return take('}');
  }
};

}  // namespace traincope::traces
