// NCCL's threads drive the plugin's functions while another thread rolls the segments, under sanitizers. At the end the
// records are what was said: each operation has the times of its channels, or is counted as lost.
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "interface.h"
#include "under_way.h"

using namespace traincope;
using namespace traincope::nccl;

extern "C" {
extern Profiler<InitV3, DescriptorV3> ncclProfiler_v3;
extern Profiler<InitV4, DescriptorV4> ncclProfiler_v4;
extern Profiler<InitV5, DescriptorV5> ncclProfiler_v6;
void* traincope_begin_segment(int, void*, int64_t, int64_t, void*);
}

namespace {

constexpr int kOperations = 20'000, kChannels = 3;
constexpr int64_t kBytes = 4'096 * sizeof(Record);
constexpr size_t kQueued = 64;
constexpr uint32_t kStale = 100, kKept = 7;
std::atomic<bool> over{false};
std::atomic<int64_t> num_calls{0}, num_ended{0}, num_wrong{0};
std::atomic<void*> stale[kStale];
std::atomic<int64_t> stale_after[kStale];  // calls, with which the slot of this handle has long been another's
std::map<uint32_t, Record> runs, calls;  // by the number of the operation

int64_t start_of(uint32_t sequence) { return 1'000 + int64_t{sequence} * 10; }
int64_t length_of(uint32_t sequence) { return (int64_t{sequence % 7} << 31) + 5; }

void collect(const char* memory) {
  for (int64_t at = 0; at + static_cast<int64_t>(sizeof(Record)) <= kBytes; at += sizeof(Record)) {
    Record record;
    std::memcpy(&record, memory + at, sizeof(record));
    if (record.kind == kCall) calls[record.window] = record;
    if (record.kind == kRun) runs[record.window] = record;
  }
}

void roll() {
  std::deque<std::pair<Segment*, char*>> retired;
  const auto release = [&](bool all) {
    for (size_t left = retired.size(); left > 0; --left) {
      const auto [segment, memory] = retired.front();
      retired.pop_front();
      if (all || release_segment(segment)) {
        collect(memory);
        std::free(memory);
      } else {
        retired.emplace_back(segment, memory);
      }
    }
  };
  while (!over) {
    auto* memory = static_cast<char*>(std::calloc(1, kBytes));
    auto* segment = static_cast<Segment*>(traincope_begin_segment(kPlace, memory, 0, kBytes, nullptr));
    while (!over && 2 * (places[kPlace].next.load() & kOffsets) < kBytes) std::this_thread::yield();
    retire(places[kPlace]);
    retired.emplace_back(segment, memory);
    release(false);
  }
  release(true);
}

// The device and NCCL's progress thread: operations in order, each with all its channels.
template <class Table, class Descriptor>
class Progress {
 public:
  Progress(Table& table, void* context) : table_(table), context_(context), thread_([this] { run(); }) {}
  void launch(void* handle, uint32_t sequence) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return queued_.size() < kQueued; });
    queued_.emplace_back(handle, sequence);
    changed_.notify_all();
  }
  void join() {
    launch(nullptr, ~0U);
    thread_.join();
  }

 private:
  void run() {
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !queued_.empty(); });
      const auto [parent, sequence] = queued_.front();
      queued_.pop_front();
      changed_.notify_all();
      lock.unlock();
      if (sequence == ~0U) return;
      void* channels[kChannels];
      for (int number = 0; number < kChannels; ++number) {
        Descriptor event = {};
        event.type = kChannelEvent;
        event.parent = parent;
        if constexpr (requires { event.channel; })
          event.channel = {static_cast<uint8_t>(number), static_cast<uint64_t>(start_of(sequence) + 2 - number)};
        table_.start_event(context_, &channels[number], &event);
      }
      for (void* channel : channels) {
        ChannelEnd end = {static_cast<uint64_t>(start_of(sequence) + length_of(sequence))};
        if (channel != nullptr) table_.record_state(channel, kChannelEnded, &end), table_.stop_event(channel);
      }
    }
  }

  Table& table_;
  void* context_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<void*, uint32_t>> queued_;
  std::thread thread_;
};

template <class Table, class Descriptor>
void enqueue(Table& table, void* context, uint64_t hash) {
  Progress<Table, Descriptor> progress(table, context);
  void* kept = nullptr;  // NCCL enqueues it until the end
  for (uint32_t sequence = 0; sequence < kOperations; ++sequence) {
    Descriptor event = {};
    event.type = kCollectiveEvent;
    auto& of = event.collective;
    of.sequence = sequence;
    of.function = sequence % 2 != 0 ? "AllReduce" : "AllGather";
    of.algorithm = "RING";
    of.protocol = "LL";
    of.datatype = "ncclInt8";
    of.count = sequence;
    if constexpr (requires { of.communicator; }) of.communicator = hash;
    if constexpr (requires { of.channels; }) of.channels = kChannels;
    while (4 * (places[kPlace].next.load() & kOffsets) > 3 * kBytes) std::this_thread::yield();
    void* handle = nullptr;
    table.start_event(context, &handle, &event);
    num_calls.fetch_add(1);
    progress.launch(handle, sequence);
    if (sequence == kKept) kept = handle;
    else if (handle != nullptr) table.stop_event(handle);
    if (sequence < kStale && sequence != kKept && hash == 6) {
      stale_after[sequence].store(num_calls.load() + 4 * int64_t{kSlots});
      stale[sequence].store(handle);
    }
  }
  progress.join();
  table.stop_event(kept);
  table.finalize(context);
}

// Handles of operations that are long gone: a fault in NCCL must not become one in the training.
void disturb() {
  while (!over) {
    for (uint32_t number = 0; number < kStale; ++number) {
      void* operation = stale[number].load();
      if (operation == nullptr || num_calls.load() < stale_after[number].load()) continue;
      ChannelEnd end = {1};
      ncclProfiler_v6.stop_event(operation);
      ncclProfiler_v6.record_state(channel_of(operation), kChannelEnded, &end);
    }
    std::this_thread::yield();
  }
}

}  // namespace

int main() {
  counts.recording.store(1);
  void *v3 = nullptr, *v4 = nullptr, *v6 = nullptr;
  int mask = 0;
  std::thread roller(roll);
  ncclProfiler_v3.init(&v3, &mask);
  ncclProfiler_v4.init(&v4, &mask, "name", 4, 1, 2, 0, nullptr);
  ncclProfiler_v6.init(&v6, 6, &mask, "name", 1, 2, 1, nullptr);
  std::vector<std::thread> threads;
  threads.emplace_back([&] { enqueue<decltype(ncclProfiler_v3), DescriptorV3>(ncclProfiler_v3, v3, 3); });
  threads.emplace_back([&] { enqueue<decltype(ncclProfiler_v4), DescriptorV4>(ncclProfiler_v4, v4, 4); });
  threads.emplace_back([&] { enqueue<decltype(ncclProfiler_v6), DescriptorV5>(ncclProfiler_v6, v6, 6); });
  std::thread disturber(disturb);
  for (auto& thread : threads) thread.join();
  over = true;
  disturber.join();
  roller.join();
  for (const auto& [number, call] : calls) {
    const Record& run = runs[number];
    const bool ends = run.end_ns != kOpen && run.peer == kChannels && run.tag == kChannels;
    const bool is_device = (run.flags & kDevice) != 0;
    int64_t length = 0;
    std::memcpy(&length, &run.group, sizeof(length));
    const bool has_times = run.value == start_of(call.sequence) && length == length_of(call.sequence);
    if (call.group == 0 ? is_device : is_device && !has_times) num_wrong.fetch_add(1);
    if (call.value != call.sequence || call.end_ns < call.start_ns) num_wrong.fetch_add(1);
    if (ends && (call.group == 0 || is_device)) num_ended.fetch_add(1);
  }
  const int64_t lost = counts.without_place.load() + counts.without_room.load();
  const bool is_right = num_wrong == 0 && static_cast<int64_t>(calls.size()) + lost == num_calls &&
                        num_ended == static_cast<int64_t>(calls.size()) && calls.size() > kOperations;
  if (is_right) return std::puts("done"), 0;
  std::printf(
      "calls %zu, lost %ld, of %ld; ended %ld, wrong %ld, late %ld\n", calls.size(), lost, num_calls.load(),
      num_ended.load(), num_wrong.load(), counts.late_channels.load());
  return 1;
}
