// Places: where the records of each writer go. Python opens and retires segments; both languages take offsets.
//
// A record that is open here keeps its segment mapped: Python unmaps one only if it is idle.
#pragma once

#include "record.h"

namespace traincope {

constexpr int kPlaces = 64;        // recorder.MAX_WRITERS
constexpr int kSegmentsAhead = 8;  // segments of a place whose late writers may still look for them
constexpr int kEpochShift = 40;
constexpr int64_t kOffsets = (int64_t{1} << kEpochShift) - 1;
constexpr int64_t kRetired = int64_t{1} << (kEpochShift - 1);  // an offset behind the end of every segment

struct Segment {
  char* base;
  int64_t limit;
  int place;
  void* words;  // Python's object for its memory, while it is a place's current one
  std::atomic<int32_t> open{0};
};

struct alignas(64) Place {
  std::atomic<int64_t> next{kRetired};  // epoch and offset in one word, so that an offset belongs to its segment
  std::atomic<int32_t> writing{0};
  std::atomic<Segment*> segments[kSegmentsAhead] = {};
  std::atomic<void*> latest{nullptr};  // see open.h
  std::atomic<uint64_t> latest_ticket{0};
};

// What the whole process shares with Python, as 64-bit integers in this order (`library.py`).
struct Shared {
  std::atomic<int64_t> step, window, detailed, in_pre_forward;
  std::atomic<int64_t> own_ns, collectives, messages, incomparable, waits, forgotten, dropped;
};

inline Place places[kPlaces];
inline Shared shared;

// A thread's place. Each run, and each forked child, binds its threads anew.
inline std::atomic<int32_t> run_number{0};
inline thread_local int32_t bound_run = -1, bound_place = -1;

inline Place* bound() {
  return bound_run == run_number.load(std::memory_order_relaxed) ? &places[bound_place] : nullptr;
}

struct Opened {
  Record* record = nullptr;  // null: there is no room
  Segment* segment = nullptr;
};

// Takes the place of one record or of several in a row, and calls `write` with the first. `writing` comes before the
// offset, so whoever retires the place afterwards sees it or has the records' place.
template <class Write>
[[gnu::always_inline]] inline Opened open_records(Place& place, int64_t bytes, Write&& write) {
  place.writing.fetch_add(1);
  const int64_t next = place.next.fetch_add(bytes);
  const int64_t offset = next & kOffsets;
  Segment* segment = nullptr;
  if (offset < kRetired)  // otherwise the segment may be gone
    segment = place.segments[(next >> kEpochShift) % kSegmentsAhead].load(std::memory_order_acquire);
  Opened opened;
  if (segment != nullptr && offset + bytes <= segment->limit) {
    segment->open.fetch_add(1);
    opened = {reinterpret_cast<Record*>(segment->base + offset), segment};
    write(opened.record);
  }
  place.writing.fetch_sub(1);
  return opened;
}

inline Opened open_record(Place& place, uint8_t kind, const Fields& fields, int64_t start_ns) {
  return open_records(place, sizeof(Record), [&](Record* at) {
    write_open(at, kind, fields, static_cast<int32_t>(shared.step.load(std::memory_order_relaxed)), start_ns);
  });
}

inline void close_record(Record* record, Segment* segment, int64_t end_ns) {
  close(record, end_ns);
  segment->open.fetch_sub(1);  // the last access
}

inline int64_t reserve(Place& place) { return place.next.fetch_add(sizeof(Record)) & kOffsets; }

// The caller is the writer's only one: it holds Python's lock.
inline Segment* begin_segment(int number, char* base, int64_t offset, int64_t limit, void* words = nullptr) {
  Place& place = places[number];
  auto* segment = new Segment{base, limit, number, words};
  const int64_t epoch = ((place.next.load() >> kEpochShift) + 1) & 0xFFFF;
  place.segments[epoch % kSegmentsAhead].store(segment, std::memory_order_release);
  place.next.store((epoch << kEpochShift) + offset);
  return segment;
}

// Begins no more records in the segment. Returns the offset behind its last one.
inline int64_t retire(Place& place) {
  const int64_t epoch = place.next.load() >> kEpochShift;
  return place.next.exchange((epoch << kEpochShift) + kRetired) & kOffsets;
}

// Frees a retired segment and returns true, if nothing can write to it any more.
inline bool release_segment(Segment* segment) {
  Place& place = places[segment->place];
  // In this order: a thread that still writes here adds its open record before it has written.
  if (place.writing.load() != 0 || segment->open.load() != 0) return false;
  for (auto& known : place.segments) {
    Segment* expected = segment;
    known.compare_exchange_strong(expected, nullptr);
  }
  delete segment;
  return true;
}

}  // namespace traincope
