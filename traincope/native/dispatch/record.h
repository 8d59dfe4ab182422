// The record of traincope/events.py: 56 bytes, written open and closed in place by one 64-bit store.
#pragma once

#include <atomic>
#include <cstdint>
#include <ctime>

namespace traincope {

constexpr int64_t kOpen = -1;
constexpr int32_t kNoPeer = -1;
constexpr uint8_t kPhase = 2, kCollective = 4, kStall = 5;
constexpr uint16_t kAsync = 1, kDoneBeforeWait = 2, kRaised = 4, kPointToPoint = 32;
constexpr int kElementShift = 13;

// What a collective's record and its stall's share.
struct Fields {
  int64_t value = 0;
  uint32_t name = 0, group = 0, sequence = 0;
  int32_t peer = kNoPeer, tag = 0;
  uint32_t window = 0;
  uint16_t flags = 0;
};

struct Record {
  int64_t start_ns, end_ns, value;
  int32_t step;
  uint32_t name, group, sequence;
  int32_t peer, tag;
  uint32_t window;
  uint16_t flags;
  uint8_t phase, kind;
};
static_assert(sizeof(Record) == 56, "events.LAYOUT");

inline int64_t monotonic_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// The kind comes last: a record whose writing was cut short does not count.
inline void write_open(
    Record* at, uint8_t kind, const Fields& fields, int32_t step, int64_t start_ns, uint8_t phase = 0) {
  at->start_ns = start_ns;
  at->end_ns = kOpen;
  at->value = fields.value;
  at->step = step;
  at->name = fields.name;
  at->group = fields.group;
  at->sequence = fields.sequence;
  at->peer = fields.peer;
  at->tag = fields.tag;
  at->window = fields.window;
  at->flags = fields.flags;
  at->phase = phase;
  __atomic_store_n(&at->kind, kind, __ATOMIC_RELEASE);
}

inline void close(Record* at, int64_t end_ns) { __atomic_store_n(&at->end_ns, end_ns, __ATOMIC_RELEASE); }

inline void add_flag(Record* at, uint16_t flag) { __atomic_fetch_or(&at->flags, flag, __ATOMIC_RELAXED); }

}  // namespace traincope
