// Collectives under way, and stalls. A callback or a wait holds a ticket: a number and a generation, never an address.
#pragma once

#include <cstring>

#include "places.h"

namespace traincope {

constexpr uint32_t kPending = 512;  // pending.MAX_PENDING
constexpr uint32_t kTensors = 1024;
constexpr uint32_t kReducerCalls = 1024;
constexpr int kStalls = 256;

using Ticket = uint64_t;  // generation << 32 | number, a positive number of 63 bits; 0: none
constexpr Ticket kNone = 0;

constexpr size_t kFieldWords = sizeof(Fields) / sizeof(uint64_t);
static_assert(sizeof(Fields) % sizeof(uint64_t) == 0);

// It counts twice in its segment: until its record is closed, and until nothing flags the record any more.
struct Pending {
  std::atomic<bool> claimed{false};   // a thread is writing it
  std::atomic<Ticket> open{kNone};    // its ticket; whoever takes it closes the record
  std::atomic<Ticket> ticket{kNone};  // its ticket; whoever takes it may flag the record, and lets the segment go
  std::atomic<Record*> record{nullptr};
  std::atomic<Segment*> segment{nullptr};
  std::atomic<bool> completes{false};  // a callback closes it
  std::atomic<bool> waited{false};
  std::atomic<int32_t> waits_left{1};
  std::atomic<int64_t> returned_ns{0};
  std::atomic<uint64_t> fields[kFieldWords];
};

struct Tensor {
  std::atomic<uintptr_t> address{0};
  std::atomic<Ticket> ticket{kNone};
};

struct Stall {
  std::atomic<bool> taken{false};
  Record* record;
  Segment* segment;
  Ticket ticket;
};

inline Pending pending[kPending];
inline std::atomic<uintptr_t> works[kPending];  // by the number of their collective
inline std::atomic<int32_t> num_works{0};
inline Tensor tensors[kTensors];
inline Stall stalls[kStalls];
inline std::atomic<uint64_t> generation{0};
inline std::atomic<uint32_t> next_pending{0}, next_tensor{0}, next_stall{0};

// DDP's collectives that only C++ waits for, since Python took them last.
inline std::atomic<Ticket> reducer_calls[kReducerCalls];
inline std::atomic<uint32_t> num_reducer_calls{0};
inline uint32_t num_reducer_calls_taken = 0;

inline Pending& entry_of(Ticket ticket) { return pending[static_cast<uint32_t>(ticket) % kPending]; }
inline bool is_valid(Ticket ticket) { return ticket != kNone && entry_of(ticket).ticket.load() == ticket; }
inline bool is_open(Ticket ticket) { return ticket != kNone && entry_of(ticket).open.load() == ticket; }

// Closes the record unless it is closed, or the ticket is out of date.
inline bool close_pending(Ticket ticket, int64_t end_ns, uint16_t flag = 0) {
  Pending& entry = entry_of(ticket);
  Record* record = entry.record.load(std::memory_order_relaxed);
  Segment* segment = entry.segment.load(std::memory_order_relaxed);
  Ticket expected = ticket;
  if (ticket == kNone || !entry.open.compare_exchange_strong(expected, kNone)) return false;
  if (flag != 0) add_flag(record, flag);
  close_record(record, segment, end_ns);
  return true;
}

// Leaves the record open for ever, as that of a message that nobody waits for.
inline void leave_open(Ticket ticket) {
  Pending& entry = entry_of(ticket);
  Segment* segment = entry.segment.load(std::memory_order_relaxed);
  Ticket expected = ticket;
  if (ticket != kNone && entry.open.compare_exchange_strong(expected, kNone)) segment->open.fetch_sub(1);
}

inline void set_work(uint32_t number, const void* work) {
  const uintptr_t before = works[number].exchange(reinterpret_cast<uintptr_t>(work));
  num_works.fetch_add((work != nullptr) - (before != 0), std::memory_order_relaxed);
}

// Nothing waits for it any more.
inline void let_go(Ticket ticket, uint16_t flag = 0) {
  Pending& entry = entry_of(ticket);
  Record* record = entry.record.load(std::memory_order_relaxed);
  Segment* segment = entry.segment.load(std::memory_order_relaxed);
  Ticket expected = ticket;
  if (ticket == kNone || !entry.ticket.compare_exchange_strong(expected, kNone)) return;
  set_work(static_cast<uint32_t>(ticket), nullptr);
  if (flag != 0) add_flag(record, flag);
  segment->open.fetch_sub(1);
}

// Reads what a collective's stall shares with it. Returns false if the ticket is out of date.
inline bool read_fields(Ticket ticket, Fields& fields) {
  const Pending& entry = entry_of(ticket);
  uint64_t words[kFieldWords];
  if (!is_valid(ticket)) return false;
  for (size_t word = 0; word < kFieldWords; ++word) words[word] = entry.fields[word].load();
  std::memcpy(static_cast<void*>(&fields), words, sizeof(fields));
  return is_valid(ticket);  // otherwise another collective has taken its place meanwhile
}

// Adds a collective whose record is open. It takes the place of the one that began kPending collectives before.
inline Ticket add_pending(const Opened& opened, const Fields& fields) {
  uint32_t number = next_pending.fetch_add(1) % kPending;
  while (pending[number].claimed.exchange(true)) number = next_pending.fetch_add(1) % kPending;
  Pending& entry = pending[number];
  const Ticket before = entry.open.load();
  if (before != kNone) {
    leave_open(before);
    shared.forgotten.fetch_add(1, std::memory_order_relaxed);
  }
  let_go(entry.ticket.load());
  opened.segment->open.fetch_add(1);
  const Ticket ticket = ((generation.fetch_add(1) + 1) & 0x7FFFFFFF) << 32 | number;
  entry.record.store(opened.record, std::memory_order_relaxed);
  entry.segment.store(opened.segment, std::memory_order_relaxed);
  uint64_t words[kFieldWords];
  std::memcpy(words, &fields, sizeof(fields));
  for (size_t word = 0; word < kFieldWords; ++word) entry.fields[word].store(words[word]);
  entry.completes.store(false, std::memory_order_relaxed);
  entry.waited.store(false, std::memory_order_relaxed);
  entry.waits_left.store(1, std::memory_order_relaxed);
  entry.returned_ns.store(0, std::memory_order_relaxed);
  entry.ticket.store(ticket);
  entry.open.store(ticket);
  entry.claimed.store(false);
  return ticket;
}

// The number of the newest collective with this work; kPending if there is none. The search ends with the last work.
inline uint32_t number_of_work(const void* work) {
  const auto address = reinterpret_cast<uintptr_t>(work);
  const uint32_t newest = next_pending.load(std::memory_order_relaxed);
  int32_t left = num_works.load(std::memory_order_relaxed);
  for (uint32_t back = 1; left > 0 && back <= kPending; ++back) {
    const uint32_t number = (newest - back) % kPending;
    const uintptr_t known = works[number].load(std::memory_order_relaxed);
    if (known == address) return number;
    left -= known != 0;
  }
  return kPending;
}

// Forgets a work that has ended unseen: its address belongs to another one now.
inline void forget_work(const void* work) {
  const uint32_t number = number_of_work(work);
  if (number != kPending) set_work(number, nullptr);
}

// Takes the collective of a work. None if it is unknown.
inline Ticket take_work(const void* work) {
  const uint32_t number = number_of_work(work);
  if (number == kPending) return kNone;
  set_work(number, nullptr);
  const Ticket ticket = pending[number].ticket.load();
  if (ticket != kNone) pending[number].waits_left.store(1);
  return ticket;
}

// A wait for this memory is one for the collective that fills it.
inline void add_tensor(const void* address, Ticket ticket) {
  if (address == nullptr) return;
  Tensor& tensor = tensors[next_tensor.fetch_add(1) % kTensors];
  tensor.address.store(0);
  tensor.ticket.store(ticket);
  tensor.address.store(reinterpret_cast<uintptr_t>(address));
}

inline Ticket take_tensor(const void* address) {
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  const uint32_t newest = next_tensor.load(std::memory_order_relaxed);
  Ticket taken = kNone;
  for (uint32_t back = 1; wanted != 0 && back <= kTensors; ++back) {
    Tensor& tensor = tensors[(newest - back) % kTensors];
    uintptr_t expected = wanted;
    if (tensor.address.load(std::memory_order_relaxed) != wanted) continue;
    const Ticket ticket = tensor.ticket.load();
    if (!tensor.address.compare_exchange_strong(expected, 0) || taken != kNone) continue;
    taken = is_valid(ticket) ? ticket : kNone;
  }
  return taken;
}

// Opens the stall of a wait for this collective. Returns null if there is no room.
inline Stall* begin_stall(Place& place, Ticket ticket, int64_t start_ns) {
  Fields fields;
  if (!read_fields(ticket, fields)) return nullptr;
  const uint32_t first = next_stall.fetch_add(1);
  for (int probe = 0; probe < kStalls; ++probe) {
    Stall& stall = stalls[(first + probe) % kStalls];
    if (stall.taken.load(std::memory_order_relaxed) || stall.taken.exchange(true)) continue;
    const Opened opened = open_record(place, kStall, fields, start_ns);
    if (opened.record == nullptr) {
      stall.taken.store(false);
      return nullptr;
    }
    stall.record = opened.record;
    stall.segment = opened.segment;
    stall.ticket = ticket;
    entry_of(ticket).waited.store(true);
    return &stall;
  }
  shared.dropped.fetch_add(1);
  return nullptr;
}

// The wait is over, so the collective is too.
inline void end_stall(Stall& stall, bool raised) {
  const int64_t now = monotonic_ns();
  close_pending(stall.ticket, now, raised ? kRaised : 0);
  if (raised) add_flag(stall.record, kRaised);
  if (entry_of(stall.ticket).waits_left.fetch_sub(1) <= 1) let_go(stall.ticket, raised ? kRaised : 0);
  close_record(stall.record, stall.segment, now);
  stall.taken.store(false);
}

}  // namespace traincope
