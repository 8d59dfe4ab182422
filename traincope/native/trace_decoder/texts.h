// Texts numbered in the order in which they come.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace traincope::traces {

class Texts {
 public:
  int32_t number(std::string_view text) {
    const uint64_t hash = hash_of(text);
    for (size_t at = hash & mask();; at = (at + 1) & mask()) {
      const Slot& slot = slots_[at];
      if (slot.number < 0) return add(text, hash, at);
      if (slot.hash == hash && (*this)[slot.number] == text) return slot.number;
    }
  }

  int64_t size() const { return static_cast<int64_t>(begins_.size()) - 1; }
  const char* bytes() const { return bytes_.data(); }
  const int64_t* begins() const { return begins_.data(); }  // and the end of the last text

 private:
  struct Slot {
    uint64_t hash = 0;
    int32_t number = -1;
  };

  size_t mask() const { return slots_.size() - 1; }

  std::string_view operator[](int32_t number) const {
    return std::string_view(bytes_).substr(begins_[number], begins_[number + 1] - begins_[number]);
  }

  int32_t add(std::string_view text, uint64_t hash, size_t at) {
    const auto number = static_cast<int32_t>(size());
    bytes_.append(text);
    begins_.push_back(static_cast<int64_t>(bytes_.size()));
    slots_[at] = {hash, number};
    if (begins_.size() * 2 > slots_.size()) widen();
    return number;
  }

  void widen() {
    std::vector<Slot> wider(slots_.size() * 2);
    for (const Slot& slot : slots_) {
      if (slot.number < 0) continue;
      size_t at = slot.hash & (wider.size() - 1);
      while (wider[at].number >= 0) at = (at + 1) & (wider.size() - 1);
      wider[at] = slot;
    }
    slots_.swap(wider);
  }

  static uint64_t hash_of(std::string_view text) {
    constexpr uint64_t kFactor = 0x9e3779b97f4a7c15;
    uint64_t hash = text.size() * kFactor;
    const char* at = text.data();
    size_t left = text.size();
    for (; left >= 8; at += 8, left -= 8) hash = mixed(hash, at, 8);
    if (left != 0) hash = mixed(hash, at, left);
    return hash ^ hash >> 29;
  }

  static uint64_t mixed(uint64_t hash, const char* at, size_t size) {
    constexpr uint64_t kFactor = 0xff51afd7ed558ccd;
    uint64_t word = 0;
    std::memcpy(&word, at, size);
    hash = (hash ^ word) * kFactor;
    return hash ^ hash >> 32;
  }

  std::string bytes_;
  std::vector<int64_t> begins_ = {0};
  std::vector<Slot> slots_ = std::vector<Slot>(1 << 8);
};

}  // namespace traincope::traces
