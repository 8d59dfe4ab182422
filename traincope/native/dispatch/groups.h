// Groups that this process has used, by the address of their ProcessGroup, and the counts that identify what they send.
//
// Python adds a group, in its first collective, and forgets it before the address can belong to another one.
#pragma once

#include <cstdlib>

#include "record.h"

namespace traincope {

// Counts of messages by (operation, peer, tag), in a table without deletion.
struct MessageCount {
  std::atomic<uint64_t> key;    // 0: free
  std::atomic<uint64_t> count;  // window and count in one word
};
constexpr size_t kMessageCounts = 1 << 14;  // groups.MAX_TAGS
constexpr size_t kProbes = 32;

inline uint64_t mixed(uint64_t value) {
  value ^= value >> 33;
  value *= 0xff51afd7ed558ccdULL;
  return value ^ (value >> 33);
}

// The next number in this window; every count begins at 0 in a new one.
inline uint32_t next_in_window(std::atomic<uint64_t>& count, uint32_t window) {
  uint64_t before = count.load(std::memory_order_relaxed), after;
  do {
    const uint32_t number = (before >> 32) == window ? static_cast<uint32_t>(before) : 0;
    after = (uint64_t{window} << 32) | (number + 1);
  } while (!count.compare_exchange_weak(before, after, std::memory_order_relaxed));
  return static_cast<uint32_t>(after) - 1;
}

struct Group {
  std::atomic<const void*> address{nullptr};
  std::atomic<uint32_t> number{0};
  std::atomic<bool> completes{false};  // its works have a real future
  std::atomic<bool> reducer{false};    // DDP's reducer waits for its collectives
  std::atomic<bool> asks{false};       // Python wants to see the next collective too
  std::atomic<uint64_t> count{0};
  std::atomic<int32_t*> ranks{nullptr};
  std::atomic<int32_t> num_ranks{0};
  std::atomic<MessageCount*> messages{nullptr};

  int32_t global_rank(int32_t peer) const {
    return 0 <= peer && peer < num_ranks.load(std::memory_order_acquire) ? ranks.load()[peer] : peer;
  }

  uint32_t next_message(uint32_t operation, int32_t peer, int32_t tag, uint32_t window) {
    MessageCount* table = messages.load(std::memory_order_acquire);
    if (table == nullptr) {
      auto* fresh = static_cast<MessageCount*>(std::calloc(kMessageCounts, sizeof(MessageCount)));
      if (fresh == nullptr) return 0;
      if (messages.compare_exchange_strong(table, fresh)) {
        table = fresh;
      } else {
        std::free(fresh);
      }
    }
    // Operators have less than 2^5 numbers, peers less than 2^24, and NO_PEER. The key is never 0.
    const uint64_t key = (uint64_t{1} << 63) | (uint64_t{operation & 0x1F} << 58) |
                         (uint64_t{static_cast<uint32_t>(peer) & 0xFFFFFF} << 32) | static_cast<uint32_t>(tag);
    const size_t home = mixed(key);
    MessageCount* oldest = &table[home % kMessageCounts];
    for (size_t probe = 0; probe < kProbes; ++probe) {
      MessageCount& at = table[(home + probe) % kMessageCounts];
      uint64_t present = at.key.load(std::memory_order_relaxed);
      if (present == key || (present == 0 && at.key.compare_exchange_strong(present, key)) || present == key)
        return next_in_window(at.count, window);
      if ((at.count.load(std::memory_order_relaxed) >> 32) != window) oldest = &at;
    }
    oldest->key.store(key);  // a training whose tags never repeat keeps the latest counts
    oldest->count.store(uint64_t{window} << 32 | 1);
    return 0;
  }
};

constexpr size_t kGroups = 1 << 12;
inline Group groups[kGroups];
inline const void* const kForgotten = &groups;  // an address that no group has

inline Group* find_group(const void* address) {
  const size_t home = mixed(reinterpret_cast<uintptr_t>(address));
  for (size_t probe = 0; probe < kGroups; ++probe) {
    Group& group = groups[(home + probe) % kGroups];
    const void* present = group.address.load(std::memory_order_acquire);
    if (present == address) return &group;
    if (present == nullptr) return nullptr;
  }
  return nullptr;
}

// The caller holds Python's lock. Returns null if the table is full.
inline Group* add_group(const void* address) {
  if (Group* known = find_group(address)) return known;
  const size_t home = mixed(reinterpret_cast<uintptr_t>(address));
  for (size_t probe = 0; probe < kGroups; ++probe) {
    Group& group = groups[(home + probe) % kGroups];
    const void* present = group.address.load();
    if (present != nullptr && present != kForgotten) continue;
    group.count.store(0);
    if (MessageCount* table = group.messages.load())
      for (size_t i = 0; i < kMessageCounts; ++i) table[i].count.store(0), table[i].key.store(0);
    return &group;
  }
  return nullptr;
}

inline void forget_group(const void* address) {
  if (Group* group = find_group(address)) group->address.store(kForgotten);
}

}  // namespace traincope
