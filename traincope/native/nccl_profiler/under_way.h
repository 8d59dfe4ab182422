// Operations under way: NCCL holds a ticket of each, never an address, and its channels end long after its own event.
#pragma once

#include "tables.h"

namespace traincope::nccl {

constexpr uint32_t kSlots = 4096, kProbes = 64;

// generation << 16 | slot << 2 | kind; never null
enum TicketKind : uint64_t { kOfOperation = 1, kOfChannel = 2, kOfParent = 3 };
constexpr uint64_t kKindBits = 3;

// An operation keeps its slot until kSlots others have begun: so a channel more than NCCL has announced still counts, and
// one that never comes takes no room for long.
struct alignas(64) Slot {
  // generation << 16 | number of users: the operation itself, NCCL until it has enqueued it, and threads in between
  std::atomic<uint64_t> state{0};
  std::atomic<bool> is_enqueued{false}, without_device_times{false};
  std::atomic<uint32_t> announced{0};  // channels; 0: unknown
  std::atomic<uint32_t> begun{0}, ended{0};
  std::atomic<uint32_t> communicator{0};
  std::atomic<int64_t> last_ns{0}, seen_ns{0};  // end of a channel, by the device's and by the host's clock
  Record *call = nullptr, *run = nullptr;
  Segment* segment = nullptr;
};

constexpr int kUserBits = 16;
constexpr uint64_t kUsers = (uint64_t{1} << kUserBits) - 1;

inline Slot slots[kSlots];
inline std::atomic<uint32_t> next_slot{0}, next_operation{0};

inline void* ticket_of(uint32_t slot, uint64_t generation, TicketKind kind) {
  return reinterpret_cast<void*>((generation << 16) | (uint64_t{slot} << 2) | kind);
}
inline uint64_t kind_of(const void* ticket) { return reinterpret_cast<uintptr_t>(ticket) & kKindBits; }
inline void* channel_of(void* operation) {
  return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(operation) & ~kKindBits) | kOfChannel);
}

// The slot of a ticket, which is not taken from it meanwhile. Null if that operation has none any more.
class Use {
 public:
  explicit Use(const void* ticket) {
    const auto number = reinterpret_cast<uintptr_t>(ticket);
    const uint64_t generation = number >> 16;
    if (ticket == nullptr) return;
    Slot& slot = slots[(number >> 2) % kSlots];
    uint64_t state = slot.state.load();
    while (state >> kUserBits == generation && (state & kUsers) != 0)
      if (slot.state.compare_exchange_weak(state, state + 1)) {
        slot_ = &slot;
        return;
      }
  }
  ~Use() {
    if (slot_ != nullptr) slot_->state.fetch_sub(1);
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  explicit operator bool() const { return slot_ != nullptr; }
  Slot* operator->() const { return slot_; }
  Slot& operator*() const { return *slot_; }

 private:
  Slot* slot_ = nullptr;
};

template <class Atomic>
void lower(Atomic&& least, int64_t value) {  // 0: none yet
  int64_t before = least.load(std::memory_order_relaxed);
  while ((before == 0 || value < before) && !least.compare_exchange_weak(before, value)) {
  }
}

template <class Atomic>
void raise(Atomic&& greatest, int64_t value) {
  int64_t before = greatest.load(std::memory_order_relaxed);
  while (value > before && !greatest.compare_exchange_weak(before, value)) {
  }
}

inline std::atomic_ref<int64_t> duration_of(Record* run) {  // in the place of `group` and `sequence`
  return std::atomic_ref(*static_cast<int64_t*>(static_cast<void*>(&run->group)));
}

// All channels that have begun have ended, and those that NCCL has announced too.
inline bool is_complete(const Slot& slot) {
  const uint32_t ended = slot.ended.load(), begun = slot.begun.load(), announced = slot.announced.load();
  return ended != 0 && ended >= begun && ended >= announced;
}

// Ends the record of an operation of which nothing more is expected, and marks it if channels are missing.
inline void give_up(Slot& slot) {
  if (is_complete(slot)) return;
  add_flag(slot.run, kPartial);
  raise(std::atomic_ref(slot.run->end_ns), std::max(slot.seen_ns.load(), std::atomic_ref(slot.run->start_ns).load()));
}

// Takes the next slot, whose operation is kSlots older, unless NCCL is still enqueueing that. Returns its generation, 0
// without one.
inline uint64_t take_slot(uint32_t& number) {
  for (uint32_t probe = 0; probe < kProbes; ++probe) {
    number = next_slot.fetch_add(1, std::memory_order_relaxed) % kSlots;
    Slot& slot = slots[number];
    uint64_t state = slot.state.load();
    const uint64_t users = state & kUsers, generation = (state >> kUserBits) + 1;
    if (users > 1 || !slot.state.compare_exchange_strong(state, (generation << kUserBits) | 2)) continue;
    if (users == 1) {
      give_up(slot);
      slot.segment->open.fetch_sub(1);
    }
    return generation;
  }
  return 0;
}

// What NCCL says of an operation when it enqueues it.
struct Enqueued {
  const char *function, *algorithm, *protocol, *datatype;
  uint64_t sequence, count;
  int peer;
  uint32_t channels;
  bool is_message;
};

inline void* begin_operation(Communicator& communicator, const Enqueued& enqueued) {
  const int64_t now = monotonic_ns();
  const uint32_t names = number_of(enqueued.function) | number_of(enqueued.algorithm) << 8 |
                         number_of(enqueued.protocol) << 16 | uint32_t{number_of(enqueued.datatype)} << 24;
  uint32_t number = 0;
  const uint64_t generation = take_slot(number);
  if (generation == 0) return counts.without_room.fetch_add(1), nullptr;
  Slot& slot = slots[number];
  slot.is_enqueued.store(false);
  slot.without_device_times.store(false);
  slot.announced.store(enqueued.channels);
  slot.begun.store(0);
  slot.ended.store(0);
  slot.communicator.store(number_of(communicator));
  slot.last_ns.store(0);
  slot.seen_ns.store(0);
  Fields fields;
  fields.value = enqueued.count < static_cast<uint64_t>(kLimit) ? static_cast<int64_t>(enqueued.count) : 0;
  fields.name = names;
  fields.group = number_of(communicator);
  fields.sequence = static_cast<uint32_t>(enqueued.sequence);
  fields.peer = enqueued.peer;
  fields.tag = static_cast<int32_t>(enqueued.channels);
  fields.window = next_operation.fetch_add(1, std::memory_order_relaxed);
  if (enqueued.is_message) {
    fields.flags = kPointToPoint;
    fields.sequence = communicator.messages.next_message(*enqueued.function == 'S', enqueued.peer, 0, 0);
  }
  const auto step = static_cast<int32_t>(shared.step.load(std::memory_order_relaxed));
  const Opened opened = open_records(places[kPlace], 2 * sizeof(Record), [&](Record* call) {
    Fields of_run;
    of_run.peer = 0;
    of_run.window = fields.window;
    write_open(call, kCall, fields, step, now);
    write_open(call + 1, kRun, of_run, step, now);
  });
  if (opened.record == nullptr) {
    slot.state.fetch_sub(2);
    return counts.without_place.fetch_add(1), nullptr;
  }
  slot.call = opened.record;
  slot.run = opened.record + 1;
  slot.segment = opened.segment;
  counts.operations.fetch_add(1, std::memory_order_relaxed);
  return ticket_of(number, generation, kOfOperation);
}

// NCCL has enqueued the operation.
inline void end_call(const void* ticket) {
  const Use slot{ticket};
  if (!slot || slot->is_enqueued.exchange(true)) return;
  close(slot->call, monotonic_ns());
  slot->state.fetch_sub(1);
}

// `device_ns`: 0 if it is unknown.
inline void* begin_channel(void* operation, int64_t device_ns) {
  if (kind_of(operation) != kOfOperation) return nullptr;
  const Use slot{operation};
  if (!slot) return counts.late_channels.fetch_add(1), nullptr;
  if (slot->begun.fetch_add(1) == 0) std::atomic_ref(slot->run->start_ns).store(monotonic_ns());
  if (0 < device_ns && device_ns < kLimit) {
    lower(std::atomic_ref(slot->run->value), device_ns);
  } else {
    slot->without_device_times.store(true);
  }
  std::atomic_ref(slot->run->peer).fetch_add(1);
  counts.channels.fetch_add(1, std::memory_order_relaxed);
  return channel_of(operation);
}

inline void end_channel(const void* channel, int64_t device_ns) {
  const Use slot{kind_of(channel) == kOfChannel ? channel : nullptr};
  if (!slot) return;
  if (0 < device_ns && device_ns < kLimit) {
    raise(slot->last_ns, device_ns);
  } else {
    slot->without_device_times.store(true);
  }
  raise(slot->seen_ns, monotonic_ns());
  std::atomic_ref(slot->run->tag).fetch_add(1);
  slot->ended.fetch_add(1);
  if (!is_complete(*slot)) return;
  const int64_t first_ns = std::atomic_ref(slot->run->value).load(), last_ns = slot->last_ns.load();
  if (!slot->without_device_times.load() && first_ns <= last_ns) {
    raise(duration_of(slot->run), last_ns - first_ns);
    add_flag(slot->run, kDevice);
  }
  raise(std::atomic_ref(slot->run->end_ns), slot->seen_ns.load());
}

// NCCL ends the communicator: no operation of it has channels any more, whatever was announced.
inline void give_up(const Communicator& communicator) {
  for (auto& slot : slots) {
    const uint64_t state = slot.state.load();
    if ((state & kUsers) == 0 || slot.communicator.load() != number_of(communicator)) continue;
    const Use use{ticket_of(static_cast<uint32_t>(&slot - slots), state >> kUserBits, kOfOperation)};
    if (!use || use->communicator.load() != number_of(communicator)) continue;
    give_up(*use);
    if (!use->is_enqueued.exchange(true)) use->state.fetch_sub(1);
  }
}

}  // namespace traincope::nccl
