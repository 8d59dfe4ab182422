// What many records share, written once per segment: the texts that NCCL gives, and its communicators.
#pragma once

#include <algorithm>
#include <cstring>

#include "groups.h"
#include "places.h"

namespace traincope::nccl {

// Kinds of records: see `traincope.events`.
constexpr uint16_t kDevice = 16, kPartial = 64;  // flags
constexpr uint8_t kCall = 16, kRun = 17, kCommunicator = 18, kText = 19;

constexpr int64_t kLimit = int64_t{1} << 61;  // readers take a larger number for damage
constexpr int kPlace = 0;                     // of all records of this library
constexpr size_t kTextBytes = 20;             // in a record: from `group` to `window`
constexpr uint8_t kNoText = 0;
constexpr int kTexts = 255, kTextCache = 64;
constexpr uint32_t kCommunicators = 4096;
constexpr uint32_t kTooMany = kCommunicators;  // the number of every communicator without a place in the table

// Numbers that Python reads, as 64-bit integers in this order (`native/nccl.py`).
struct Counts {
  std::atomic<int64_t> recording, communicators, operations, channels, without_room, without_place, late_channels;
};
inline Counts counts;

// Writes the record of an instant. `fill` sets its own fields.
template <class Fill>
void write_instant(uint8_t kind, Fill&& fill) {
  const Opened opened = open_records(places[kPlace], sizeof(Record), [&](Record* at) {
    *at = {};
    at->start_ns = at->end_ns = monotonic_ns();
    at->step = -1;
    fill(at);
    __atomic_store_n(&at->kind, kind, __ATOMIC_RELEASE);
  });
  if (opened.record != nullptr) opened.segment->open.fetch_sub(1);
}

struct Text {
  std::atomic<int> state{0};  // 0: free, 1: being written, 2: ready
  char bytes[kTextBytes];     // without an end if it is as long, or was cut
};

inline Text texts[kTexts];
inline std::atomic<uint8_t> text_cache[kTextCache];  // by the text's address: its number, which the text confirms

inline void write_text(int number) {
  write_instant(kText, [&](Record* at) {
    at->name = static_cast<uint32_t>(number);
    std::memcpy(&at->group, texts[number - 1].bytes, kTextBytes);
  });
}

inline bool is_text(int number, const char* text) {
  const Text& known = texts[number - 1];
  return known.state.load(std::memory_order_acquire) == 2 && std::strncmp(known.bytes, text, kTextBytes) == 0;
}

// The number of a text, from 1 on. kNoText if there is none, or no room.
inline uint8_t number_of(const char* text) {
  if (text == nullptr || *text == 0) return kNoText;
  auto& cached = text_cache[(reinterpret_cast<uintptr_t>(text) >> 3) % kTextCache];
  const uint8_t likely = cached.load(std::memory_order_relaxed);
  if (likely != kNoText && is_text(likely, text)) return likely;
  for (int number = 1; number <= kTexts; ++number) {
    Text& at = texts[number - 1];
    int state = 0;
    const bool is_new = at.state.compare_exchange_strong(state, 1);
    if (is_new) {
      std::strncpy(at.bytes, text, kTextBytes);
      at.state.store(2, std::memory_order_release);
      write_text(number);
    }
    if (is_new || is_text(number, text)) {
      cached.store(static_cast<uint8_t>(number), std::memory_order_relaxed);
      return static_cast<uint8_t>(number);
    }
  }
  return kNoText;
}

// A communicator of this process. Its number is never that of another one.
struct Communicator {
  std::atomic<bool> is_live{false};
  std::atomic<uint64_t> hash{0};
  std::atomic<int32_t> rank{-1};
  int32_t num_ranks = 0, num_nodes = 0, version = 0;  // 0: unknown
  Group messages;                                     // counts of sends and receives by their peer
};

inline Communicator communicators[kCommunicators];
inline Communicator one_too_many;
inline std::atomic<uint32_t> num_communicators{0};

inline uint32_t number_of(const Communicator& communicator) {
  return &communicator == &one_too_many ? kTooMany : static_cast<uint32_t>(&communicator - communicators);
}

inline void write_communicator(const Communicator& communicator) {
  if (&communicator == &one_too_many) return;
  write_instant(kCommunicator, [&](Record* at) {
    const uint64_t hash = communicator.hash.load();
    at->value = communicator.version;
    at->name = number_of(communicator);
    std::memcpy(&at->group, &hash, sizeof(hash));
    at->peer = communicator.rank.load();
    at->tag = communicator.num_ranks;
    at->window = static_cast<uint32_t>(communicator.num_nodes);
  });
}

inline Communicator& add_communicator(int version, uint64_t hash, int nodes, int ranks, int rank) {
  const uint32_t number = num_communicators.fetch_add(1);
  counts.communicators.fetch_add(1);
  if (number >= kCommunicators) return one_too_many;
  Communicator& added = communicators[number];
  added.hash.store(hash);
  added.rank.store(rank);
  added.num_ranks = ranks;
  added.num_nodes = nodes;
  added.version = version;
  added.is_live.store(true);
  if (version > 3) write_communicator(added);
  return added;
}

// Version 3 names a communicator only in its events.
inline void name_communicator(Communicator& communicator, uint64_t hash, int rank) {
  uint64_t unknown = 0;
  if (hash == 0 || communicator.hash.load(std::memory_order_relaxed) == hash) return;
  communicator.rank.store(rank);
  if (communicator.hash.compare_exchange_strong(unknown, hash)) write_communicator(communicator);
}

// A segment has all texts, and the communicators that its records may name: older segments may be deleted.
inline void write_tables() {
  for (int number = 1; number <= kTexts; ++number)
    if (texts[number - 1].state.load(std::memory_order_acquire) == 2) write_text(number);
  const uint32_t end = std::min(num_communicators.load(), kCommunicators);
  for (uint32_t number = 0; number < end; ++number)
    if (communicators[number].is_live.load() && communicators[number].hash.load() != 0)
      write_communicator(communicators[number]);
}

}  // namespace traincope::nccl
